"""The training loop: the only one, for every objective.

A step is device work alone. The learning rate, the progress, the loss sums and the watch for NaN are tensors changed in
place, and nothing is read back, so the host runs ahead of the device and a whole step fits into one CUDA graph. The
host reads the numbers when they are logged, evaluated or saved.
"""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from vitreous import keys
from vitreous.batch import Batch
from vitreous.display.words import percent
from vitreous.errors import UserError
from vitreous.nn.blocks import Draws
from vitreous.nn.shards import fitted
from vitreous.objectives.base import Objective
from vitreous.terminal import Bar
from vitreous.training.averages import Average
from vitreous.training.checkpoint import Checkpoint
from vitreous.training.devices import (
    Compile,
    Precision,
    World,
    autocast,
    compiles,
    multiply_in_8_bits,
)
from vitreous.training.diverged import origin
from vitreous.training.graph import Graph, GraphedStep
from vitreous.training.meter import Meter
from vitreous.training.one_pass import OnePass
from vitreous.training.optim import Optimizer
from vitreous.training.ranks import Shard, gathered, held_back, over_ranks
from vitreous.training.run import RunDirectory
from vitreous.training.saving import Saver
from vitreous.training.schedule import ScheduleSettings
from vitreous.training.stopping import DivergedError, StopSignals

Evaluate = Callable[[Objective], dict[str, float]]
# Called after a step: the schedule and the number of steps from now on, if they have changed.
Course = Callable[[int], tuple[ScheduleSettings, int] | None]
FAR = 2**40  # steps: the end of a run whose length is not decided yet


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """What saves memory and costs time."""

    accumulate: int = 1  # parts of a step's batch that are computed one after the other
    recompute: bool = False  # compute activations again in the backward pass instead of keeping them
    shard: Shard = "auto"  # each rank holds a share of every weight; auto: if all of them would fill half a device

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UserError(f"training.memory.accumulate is {self.accumulate}: it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    epochs: float = 100.0  # passes over the training data; ignored if steps is given
    steps: int | None = None  # length of the run in optimizer steps
    batch_size: int = 512  # pictures per step, over all ranks and accumulated parts
    clip: float | None = 1.0  # largest global norm of the gradient
    precision: Precision = "fp32"  # bf16: activations in bfloat16, sums in float32; auto: bf16 if supported; fp8: H100
    compile: Compile = False  # torch.compile the objective and the augmentation; auto: on a GPU
    cuda_graph: Graph = "auto"  # launch each step as one CUDA graph; auto: on one GPU, if the step allows it
    memory: MemorySettings = field(default_factory=MemorySettings)  # how to use less of it
    keep: Literal["last", "best"] = "last"  # which weights: best on the validation part is early stopping
    evaluate_every_epochs: float = 1.0  # on the validation part, raw and averaged weights; 0: only at the end
    checkpoint_every_s: float = 120.0  # seconds between checkpoints
    log_every_steps: int = 50  # steps per logged line of mean losses
    seed: int = 0  # initial weights, order of samples, augmentation, dropout
    workers: int = 2  # processes that read pictures not kept in memory
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: cuda if there is a GPU; mps is experimental

    def __post_init__(self) -> None:
        for name in ("batch_size", "log_every_steps", "steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"training.{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("epochs", "evaluate_every_epochs", "checkpoint_every_s", "workers"):
            if not getattr(self, name) >= 0:
                raise UserError(f"training.{name} is {getattr(self, name)}: it must not be negative")
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"training.clip is {self.clip}: it must be above 0, or none")

    def num_steps(self, steps_per_epoch: int) -> int:
        return self.steps if self.steps is not None else max(1, round(self.epochs * steps_per_epoch))

    def evaluate_every_steps(self, steps_per_epoch: int) -> int:
        every = self.evaluate_every_epochs
        return max(1, round(every * steps_per_epoch)) if every else 0


class TrainingData(Protocol):
    """What the loop needs of a loader; data.loader.TrainLoader is one."""

    steps_per_epoch: int
    waited_s: float

    def inputs(self, start: int, stop: int) -> Generator[tuple[Tensor, ...], None, None]:
        """The input of each step in [start, stop), on the device: a function of the step alone."""
        ...

    def prepare(self, *inputs: Tensor) -> Batch:
        """The batch itself: pure device work (augmentation, mixing, normalisation)."""
        ...


class Loop:
    """One run: an objective, its data, and everything that changes while it trains."""

    def __init__(
        self,
        objective: Objective,
        data: TrainingData,
        *,
        optimizer: Optimizer,
        schedule: ScheduleSettings,
        average: Average,
        settings: TrainingSettings,
        world: World,
    ) -> None:
        self.objective, self.data, self.optimizer = objective, data, optimizer
        self.schedule, self.average, self.settings, self.world = schedule, average, settings, world
        self.num_steps = settings.num_steps(data.steps_per_epoch)
        if settings.batch_size % (settings.memory.accumulate * world.size):
            raise UserError(
                f"training.batch_size is {settings.batch_size:,}, which {world.size} processes with "
                f"{settings.memory.accumulate} parts each cannot share evenly: make it a multiple of "
                f"{settings.memory.accumulate * world.size:,}"
            )
        if settings.memory.accumulate > 1 and objective.across_samples:
            raise UserError(
                f"{type(objective).__name__} compares the samples of a batch with each other, so a batch cannot be "
                "computed in parts: give --training.memory.accumulate 1 and, to save memory, "
                "--training.memory.recompute true"
            )
        if settings.batch_size == 1 and objective.across_samples:
            raise UserError(
                f"{type(objective).__name__} compares the samples of a batch with each other, so a batch of one "
                "teaches it nothing: it needs at least two pictures, and a larger training.batch_size"
            )
        self.step_count = torch.zeros((), dtype=torch.int64, device=world.device)
        self.first_bad_step = torch.full((), -1, dtype=torch.int64, device=world.device)
        self.meter = Meter(world)
        self.final_scores: dict[str, float] | None = None  # of the kept weights, on the validation part
        self.concerned = False  # whether the user has been warned of what the numbers show
        self.draws = Draws(objective)
        if settings.precision == "fp8":
            multiply_in_8_bits(objective, world.device)
        is_compiled = compiles(world.device, settings.compile)
        self.losses = over_ranks(objective, world, compiled=is_compiled)
        self.prepare = torch.compile(data.prepare, dynamic=False) if is_compiled else data.prepare
        self.one_pass = OnePass.of(objective, optimizer, average) if world.size == 1 else None
        self.ungraphed = False  # whether the step turned out not to fit into a CUDA graph
        self.run_step = self._step_to_run()

    def _step_to_run(self) -> Callable[..., None]:
        wanted, world = self.settings.cuda_graph, self.world
        if not wanted or self.ungraphed or world.device.type != "cuda" or world.size > 1:
            return self.step
        if wanted is True:
            return GraphedStep(self.step)
        if not self.objective.on_device:
            return self._without_graph(f"{type(self.objective).__name__} needs the host within a step")
        if self.settings.memory.recompute and not compiles(world.device, self.settings.compile):
            return self._without_graph("torch keeps random numbers on the host to recompute activations")
        return GraphedStep(self.step, give_up=self._without_graph)

    def _without_graph(self, reason: str) -> Callable[..., None]:
        """From now on, each kernel of a step is launched separately."""
        self.ungraphed = True
        self.optimizer.zero_grad()  # after a failed capture, gradients are memory that was never written to
        print(f"note: steps are not launched as one CUDA graph: {reason}", file=sys.stderr, flush=True)
        return self.step

    # ---- one step

    def step(self, *inputs: Tensor) -> None:
        """Pictures -> losses -> gradients -> weights, without the host."""
        progress = self.step_count / self.num_steps
        self.optimizer.set_rate(self.schedule.rate(self.step_count, self.num_steps))
        batch = self.prepare(*inputs)
        *earlier, last = batch.parts(self.settings.memory.accumulate)
        total = torch.zeros_like(progress)
        with held_back(self.losses):
            for part in earlier:
                total += self._backward(part, progress)
        total += self._backward(last, progress)
        total = self.world.mean(total)  # every rank must see if something went wrong on one of them
        norm = self.optimizer.norm() if self.one_pass else self.optimizer.clip(self.settings.clip)
        self.meter.add({"gradient_norm": norm})
        self._watch(total, norm)
        bad = self.first_bad_step >= 0
        if self.one_pass:
            self.one_pass.step(norm, self.settings.clip, bad)
        else:
            self.optimizer.step(bad)
        self.optimizer.zero_grad()
        self.step_count += 1
        self.objective.after_step(progress)
        self.average.update()

    def _backward(self, part: Batch, progress: Tensor) -> Tensor:
        """Adds to the gradients; returns the loss."""
        with self.draws.of(part.keys, len(part.views)):
            with autocast(self.world.device, self.settings.precision):
                losses = self.losses(part, progress)
            (losses["loss"] / self.settings.memory.accumulate).backward()  # type: ignore[no-untyped-call]
        self.meter.add(losses, self.settings.memory.accumulate)
        return losses["loss"].detach()

    def _watch(self, loss: Tensor, norm: Tensor) -> None:
        # Once bad, always bad: no later step changes a weight, and the host finds out when it next checks.
        newly_bad = ~(torch.isfinite(loss) & torch.isfinite(norm)) & (self.first_bad_step < 0)
        self.first_bad_step.copy_(torch.where(newly_bad, self.step_count, self.first_bad_step))

    def _check_health(self) -> None:
        bad = int(self.first_bad_step)
        if bad >= 0:
            raise DivergedError(
                f"the loss or its gradient became NaN or infinite at step {bad + 1:,}{self._origin(bad)}; that step "
                "was not taken, and nothing has been saved since. With another --out, try a lower --optimizer.lr, a "
                "longer warm-up (--schedule.warmup_steps) or --training.clip 1"
            )

    def _origin(self, step: int) -> str:
        """Where a bad step went wrong. It can be computed again, since it has changed no weight."""
        if self.world.size > 1:
            return ""
        torch.manual_seed(keys.step_seed(self.settings.seed, step + 1, self.world.rank))
        with closing(self.data.inputs(step, step + 1)) as reads:
            batch = self.data.prepare(*next(reads))
        progress = torch.full_like(self.step_count, step) / self.num_steps
        with suppress(torch.OutOfMemoryError):  # without compilation a step needs more
            for part in batch.parts(self.settings.memory.accumulate):
                with self.draws.of(part.keys, len(part.views)):
                    found = origin(self.objective, part, progress, autocast(self.world.device, self.settings.precision))
                if found:
                    return f", {found}"
            is_compiled = compiles(self.world.device, self.settings.compile)
            return ", though not when computed again" + (" without --training.compile" if is_compiled else "")
        return ""

    # ---- the whole run

    def run(
        self, directory: RunDirectory, evaluate: Evaluate | None, until: int | None = None, course: Course | None = None
    ) -> None:
        """Train from wherever the run is to its end, or to the step `until`, and save. `course` may move the end."""
        start, last = self._resume(directory), min(until or self.num_steps, self.num_steps)
        every = self.settings.evaluate_every_steps(self.data.steps_per_epoch)
        step, saved_at = start, time.monotonic()
        reads = self.data.inputs(start, last if course is None else FAR)
        with (
            StopSignals() as signals,
            self._bar(start) as bar,
            closing(reads),
            Saver(directory, self.world) as saver,
        ):
            for step, inputs in enumerate(reads, start=start + 1):
                # Dropout draws from (seed, step, rank), everything else from the samples' keys.
                torch.manual_seed(keys.step_seed(self.settings.seed, step, self.world.rank))
                self.run_step(*inputs)
                if course is not None and self._is_in_step(step):
                    self._follow(course(step), bar)
                    last = min(until or self.num_steps, self.num_steps)
                bar.update(step)
                if step % self.settings.log_every_steps == 0 or step == self.num_steps:
                    self._log(directory, step, bar)
                if evaluate is not None and (step == self.num_steps or (every and step % every == 0)):
                    self._check_health()
                    self._evaluate(directory, step, evaluate)
                due = time.monotonic() - saved_at >= self.settings.checkpoint_every_s
                # Clocks, disks and signals differ between ranks, which must save and stop after the same step.
                due, stop, is_writing = self.world.any(due, signals.received > 0, saver.is_writing)
                if not is_writing:
                    saver.finish()
                if stop or due or step == last:
                    self._save(saver, step)
                    saved_at = time.monotonic()
                if stop or step == last:
                    break
        if self.world.any(signals.received > 0)[0]:  # also one that came while the last checkpoint was written
            raise signals.stopped(f"after step {step:,} of {self.num_steps:,}, saved in {directory.path}")

    def _is_in_step(self, step: int) -> bool:
        """Whether the clock shows when this step was done: the host waits for a GPU only when it logs numbers."""
        return self.world.device.type == "cpu" or step % self.settings.log_every_steps == 0

    def _follow(self, changed: tuple[ScheduleSettings, int] | None, bar: Bar) -> None:
        if changed is not None:
            self.schedule, self.num_steps = changed
            bar.total = self.num_steps
            self.run_step = self._step_to_run()  # a CUDA graph contains the old schedule

    def _bar(self, start: int) -> Bar:
        if self.world.is_first:
            return Bar("training", self.num_steps, done=start, unit="steps")
        return Bar("", 0, silent=True)

    def _log(self, directory: RunDirectory, step: int, bar: Bar) -> None:
        self._check_health()
        numbers = self.meter.read()
        factor = float(self.schedule.rate(self.step_count - 1, self.num_steps))
        if self.world.is_first:
            directory.log({"step": step, "epoch": step / self.data.steps_per_epoch, **numbers, "rate_factor": factor})
            self._warn(step, numbers)
        pictures = (step - bar.first) * self.settings.batch_size / bar.elapsed_s
        bar.update(
            step,
            loss=f"{numbers['loss']:.4f}",
            pictures=f"{pictures:,.0f}/s",
            waiting=percent(self.data.waited_s / bar.elapsed_s, 0),
        )

    def _warn(self, step: int, numbers: dict[str, float]) -> None:
        """Once for as long as it lasts: a run that collapses says so when that begins, not at every logged line."""
        concern = self.objective.concern(numbers)
        if concern is not None and not self.concerned:
            print(f"warning at step {step:,}: {concern}", file=sys.stderr, flush=True)
        self.concerned = concern is not None

    def _evaluate(self, directory: RunDirectory, step: int, evaluate: Evaluate) -> None:
        scores = self._quietly(evaluate)
        results = {f"val/{name}": value for name, value in scores.items()}
        if self.average.is_on:
            with self.average.swapped():
                scores = self._quietly(evaluate)
            results |= {f"val_average/{name}": value for name, value in scores.items()}
        self.final_scores = scores if step == self.num_steps else None
        if self.world.is_first:
            directory.log({"step": step, "epoch": step / self.data.steps_per_epoch, **results})

    def _quietly(self, evaluate: Evaluate) -> dict[str, float]:
        self.objective.eval()
        try:
            with torch.no_grad(), gathered(self.objective), autocast(self.world.device, self.settings.precision):
                return evaluate(self.objective)
        finally:
            self.objective.train()

    # ---- state: weights, optimizer, averages and progress

    def _save(self, saver: Saver, step: int) -> None:
        self._check_health()
        tensors = {
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state(),
            "average": self.average.state(),
            "meter": self.meter.state(),
        }
        saver.begin(step, tensors, {"step": step, "samples": step * self.settings.batch_size})

    def _resume(self, directory: RunDirectory) -> int:
        """Load the newest intact checkpoint; returns the step the run is at."""
        checkpoint = directory.latest_checkpoint()
        for note in checkpoint.notes if checkpoint is not None and self.world.is_first else ():
            print(f"skipped: {note}", file=sys.stderr)
        self._check_agreed(directory, 0 if checkpoint is None else checkpoint.step)
        if checkpoint is None:
            directory.truncate_log(0)
            return 0
        self._load_weights(checkpoint, directory)
        self.optimizer.load_state(fitted(checkpoint.tensors["optimizer"], self.optimizer.state()))
        self.average.load_state(fitted(checkpoint.tensors["average"], self.average.state()))
        self.meter.load_state(checkpoint.tensors["meter"])
        self.step_count.fill_(checkpoint.step)
        directory.truncate_log(checkpoint.step)
        return checkpoint.step

    def _check_agreed(self, directory: RunDirectory, step: int) -> None:
        """Ranks at different steps would spoil each other's weights, and no number would show it."""
        steps = self.world.collect(f"{step:,}")
        if len(set(steps)) > 1:
            raise UserError(
                f"{directory.path}: the ranks find different checkpoints in it, of the steps {', '.join(steps)}; it "
                "must be one folder that all hosts share"
            )

    def _load_weights(self, checkpoint: Checkpoint, directory: RunDirectory) -> None:
        try:
            self.objective.load_state_dict(fitted(checkpoint.tensors["objective"], self.objective.state_dict()))
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise UserError(
                f"{directory.path}: its checkpoint is of another model ({first}). Give another --out, or the classes "
                "and settings that the run began with"
            ) from None
