"""A fit by several processes (torchrun): the first checks, plans and evaluates as if it were alone; all of them train.

However long the first works alone, the others keep hearing from it, through threads that do nothing else: if they hear
nothing for as long as ranks wait for each other, it is lost.
"""

import io
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vitreous import settings
from vitreous.fitting.begun import Request, begun_before
from vitreous.fitting.job import Job, Parts
from vitreous.fitting.keep import TRAINED
from vitreous.fitting.stages import Stages
from vitreous.jobs.data import OpenData
from vitreous.jobs.train import train
from vitreous.nn import gather
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import LostRankError, World, rank_timeout_s
from vitreous.training.loop import Course
from vitreous.training.schedule import ScheduleSettings
from vitreous.training.stopping import DivergedError

Word = dict[str, Any]
BEAT_S = 1.0  # between signs of life from the first
LEAVE_S = 5.0  # that a process waits for its thread at the end


class Ranks:
    """This process among those of a fit; most fits have only one."""

    def __init__(self, world: World) -> None:
        self.world, self.is_over = world, world.size == 1
        self._words: queue.SimpleQueue[Word | RuntimeError] = queue.SimpleQueue()  # to send, or received
        if world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=rank_timeout_s()))
            work: Callable[[], None] = self._tell_all if world.is_first else self._listen
            self._thread = threading.Thread(target=work, daemon=True)
            self._thread.start()
        if world.is_first:
            gather.be_alone(world.size > 1)

    # ---- the first

    @contextmanager
    def training(self, recipe: Recipe, *, is_aimed: bool) -> Iterator[None]:
        """All processes take part in what is inside."""
        if self.world.size == 1:
            yield
            return
        self._words.put({"recipe": settings.to_json(recipe), "is_aimed": is_aimed})
        gather.be_alone(False)
        try:
            yield
        except LostRankError:
            self.is_over = True  # nobody listens
            raise
        finally:
            gather.be_alone()

    def dismiss(self) -> None:
        """Lets the others go: the first does the rest alone."""
        if not self.is_over:
            self._words.put({})
            self._thread.join(LEAVE_S)
        self.is_over = True

    def _tell_all(self) -> None:
        """Send words, and signs of life between them."""
        word: Word = {"nothing": True}
        with suppress(RuntimeError):  # one is gone, which training will notice
            while word:
                try:
                    word = self._words.get(timeout=BEAT_S)  # type: ignore[assignment]
                except queue.Empty:
                    word = {"nothing": True}
                self._broadcast(word)

    # ---- the others

    def follow(self, request: Request, out: Path) -> None:
        """Open the same pictures, and train what the first says, until it is done."""
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                parts = Job.opened(request, out, begun_before(out, request), Stages(None)).parts
            while word := self._hear():
                recipe = settings.from_json(Recipe, word["recipe"])
                course = self.course(_no_change) if word["is_aimed"] else None
                with suppress(DivergedError):
                    train(recipe, out, read_test=False, open_data=_opens(parts, recipe), course=course, into=TRAINED)
        except LostRankError:
            raise
        except BaseException:
            self._thread.join(LEAVE_S)  # the first fails too, and says that it is over
            raise

    def _hear(self) -> Word:
        word = self._words.get()
        if isinstance(word, RuntimeError):
            raise word
        return word

    def _listen(self) -> None:
        word: Word = {"nothing": True}
        try:
            while word:
                word = self._broadcast({})
                if "nothing" not in word:
                    self._words.put(word)
        except RuntimeError as error:
            self._words.put(error)

    # ---- all

    def course(self, course: Course) -> Course:
        """The course of the first, followed by all after the same step."""
        if self.world.size == 1:
            return course

        def followed(step: int) -> tuple[ScheduleSettings, int] | None:
            changed = course(step)
            word = self._say({} if changed is None else {"schedule": settings.to_json(changed[0]), "steps": changed[1]})
            return (settings.from_json(ScheduleSettings, word["schedule"]), word["steps"]) if word else None

        return followed

    def _say(self, word: Word) -> Word:
        """What the first says during training."""
        heard: Word = json.loads(self.world.collect(json.dumps(word))[0])
        return heard

    def _broadcast(self, word: Word) -> Word:
        """What the first says; the others receive it, and their own argument is ignored."""
        said = torch.tensor(list(json.dumps(word).encode()), dtype=torch.uint8)
        length = torch.tensor(len(said))
        dist.broadcast(length, 0, group=self._group)
        text = said if self.world.is_first else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(text, 0, group=self._group)
        heard: Word = json.loads(bytes(text.tolist()))
        return heard


def _no_change(step: int) -> None:
    """The course of a process that follows."""


def _opens(parts: Parts, recipe: Recipe) -> OpenData:
    splits = parts.of(recipe)
    return lambda _: splits
