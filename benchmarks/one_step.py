"""A step of the real training loop on pictures that are there already, and how long it takes."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.batch import Batch
from vitreous.objectives.base import Objective
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import Precision, World
from vitreous.training.graph import Graph
from vitreous.training.loop import Loop, TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings

Step = Callable[[], None]


class SameBatch:
    """Stands in for a loader: the input is not what is measured."""

    steps_per_epoch, waited_s = 1_000_000, 0.0

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def inputs(self, start: int, stop: int) -> Iterator[tuple[Tensor, ...]]:
        return iter([()] * (stop - start))

    def prepare(self, *inputs: Tensor) -> Batch:
        return self.batch


def step_of(objective: Objective, images: Tensor, labels: Tensor, compiled: bool, graph: Graph = False) -> Step:
    ids = torch.arange(len(images), device=images.device)
    batch = Batch(views=(images,), targets={"label": labels}, ids=ids, keys=ids)
    return loop_on(objective, batch, compiled, graph=graph).run_step


def step_on(objective: Objective, batch: Batch, compiled: bool) -> Step:
    return loop_on(objective, batch, compiled).step


def loop_on(
    objective: Objective,
    batch: Batch,
    compiled: bool,
    precision: Precision = "bf16",
    *,
    graph: Graph = False,
    clip: float | None = None,
    average: AverageSettings | None = None,
) -> Loop:
    """Fused AdamW, gradient norm, watch for NaN: the step that training takes."""
    data, images = SameBatch(batch), batch.images
    settings = TrainingSettings(
        epochs=1, batch_size=len(images), clip=clip, precision=precision, compile=compiled, cuda_graph=graph
    )
    loop = Loop(
        objective,
        data,
        optimizer=AdamWSettings(lr=1e-4, weight_decay=0.1).build(objective),
        schedule=ScheduleSettings(decay="constant"),
        average=(average or AverageSettings()).build(objective),
        settings=settings,
        world=World.join("cuda" if images.is_cuda else "cpu"),
    )
    loop.prepare = data.prepare
    return loop


def their_step(model: torch.nn.Module, images: Tensor, labels: Tensor, compiled: bool, mode: str | None = None) -> Step:
    return plain_step(
        model, lambda forward: F.cross_entropy(forward(images), labels), images.device, compiled=compiled, mode=mode
    )


def plain_step(
    model: torch.nn.Module,
    loss_of: Callable[[Any], Tensor],
    device: torch.device,
    *,
    compiled: bool = False,
    mode: str | None = None,
    after: Callable[[], object] | None = None,
) -> Step:
    """A step of any module, as its users would write it. `loss_of` is given what to call, the module or its compiled
    form; mode: of torch.compile; `after`: what follows each step."""
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False, mode=mode) if compiled else model

    def step() -> None:
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(forward)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if after is not None:
            after()

    return step


def seconds(step: Step, times: int, device: torch.device) -> float:
    """Of one step, the mean of several."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return (time.perf_counter() - began) / times


def matrix_tflops(side: int = 8192) -> float:
    """What one large product of random bfloat16 matrices reaches on this GPU: the ceiling of a step."""
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def work() -> None:
        a @ b

    seconds(work, 5, a.device)
    return 2 * side**3 / min(seconds(work, 10, a.device) for _ in range(3)) / 1e12
