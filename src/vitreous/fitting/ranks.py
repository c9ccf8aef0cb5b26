"""A fit by several processes (torchrun): the first looks, plans and judges as if it were alone; all of them train."""

import io
import json
from collections.abc import Iterator
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
from vitreous.training.devices import World
from vitreous.training.loop import Course, DivergedError
from vitreous.training.schedule import ScheduleSettings

PATIENCE = timedelta(days=7)  # of those who wait for the first: what it does alone takes as long as it takes


class Ranks:
    """This process among those of one fit; most fits have but one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.group = None if world.size == 1 else dist.new_group(backend="gloo", timeout=PATIENCE)
        self.is_over = world.size == 1  # nobody waits for a word any more
        if world.is_first:
            gather.be_alone(world.size > 1)

    # ---- the first

    @contextmanager
    def training(self, recipe: Recipe, *, is_aimed: bool) -> Iterator[None]:
        """Inside, all take part."""
        if self.world.size == 1:
            yield
            return
        self._say({"recipe": settings.to_json(recipe), "is_aimed": is_aimed})
        gather.be_alone(False)
        try:
            yield
        except DivergedError:  # there may be another model, and the others wait for what is done with it
            raise
        except BaseException:
            self.is_over = True  # whatever it is, they met it too
            raise
        finally:
            gather.be_alone()

    def dismiss(self) -> None:
        """The others may go: what follows, the first does alone."""
        if not self.is_over:
            with suppress(RuntimeError):  # one that is gone already
                self._say({})
        self.is_over = True

    # ---- the others

    def follow(self, request: Request, out: Path) -> None:
        """Open the same pictures, and train what the first says, until it says no more."""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            parts = Job.opened(request, out, begun_before(out, request), Stages(None)).parts
        while word := self._say({}):
            recipe = settings.from_json(Recipe, word["recipe"])
            course = self.course(_no_change) if word["is_aimed"] else None
            with suppress(DivergedError):
                train(recipe, out, read_test=False, open_data=_opens(parts, recipe), course=course, into=TRAINED)

    # ---- all

    def course(self, course: Course) -> Course:
        """The first one's, followed by all after the same step."""
        if self.world.size == 1:
            return course

        def followed(step: int) -> tuple[ScheduleSettings, int] | None:
            changed = course(step)
            word = self._say({} if changed is None else {"schedule": settings.to_json(changed[0]), "steps": changed[1]})
            return (settings.from_json(ScheduleSettings, word["schedule"]), word["steps"]) if word else None

        return followed

    def _say(self, word: dict[str, Any]) -> dict[str, Any]:
        """What the first says; the others listen, and their own word counts for nothing."""
        said = torch.tensor(list(json.dumps(word).encode()), dtype=torch.uint8)
        length = torch.tensor(len(said))
        dist.broadcast(length, 0, group=self.group)
        text = said if self.world.is_first else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(text, 0, group=self.group)
        heard: dict[str, Any] = json.loads(bytes(text.tolist()))
        return heard


def _no_change(step: int) -> None:
    """The course of one that follows."""


def _opens(parts: Parts, recipe: Recipe) -> OpenData:
    splits = parts.of(recipe)
    return lambda _: splits
