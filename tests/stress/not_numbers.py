"""NaN and infinity in pictures, losses and gradients, and a rate of 1e20: never in a checkpoint, and a clear line. What
was saved before goes on exactly where the fault was a passing one."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, pictures, reference
from stress.warm import Ended, run, together
from vitreous.training.checkpoint import Checkpoints
from vitreous.weights import own

NAN, INF = float("nan"), float("inf")
STEP = 7  # steps were taken before the fault

# ---- faults, put into a process


def _in_loss(value: float, rank: int | None = None) -> None:
    from vitreous.training.loop import Loop

    backward = Loop._backward

    def faulty(self: Loop, part: object, progress: object) -> object:
        if int(self.step_count) != STEP or rank not in (None, self.world.rank):
            return backward(self, part, progress)
        losses = self.losses
        self.losses = lambda *given: {name: loss * value for name, loss in losses(*given).items()}
        try:
            return backward(self, part, progress)
        finally:
            self.losses = losses

    Loop._backward = faulty


def _in_gradient(value: float) -> None:
    from vitreous.training.loop import Loop

    backward = Loop._backward

    def faulty(self: Loop, part: object, progress: object) -> object:
        loss = backward(self, part, progress)
        if int(self.step_count) == STEP:
            last = [p for p in self.objective.parameters() if p.grad is not None][-1]
            last.grad.view(-1)[0] = value
        return loss

    Loop._backward = faulty


# ---- trials


def passing(before: Callable[[], None], name: str, ranks: int, folder: Path, shared: Path) -> None:
    """A fault of one step of one process: noticed, not saved, and without it the same command ends as if never."""
    scenario, out = SCENARIOS[name], folder / "out"
    expected, _ = reference(shared, name, ranks)
    words = scenario.words(shared, out)
    again = ", though not when computed again" if ranks == 1 else ""  # which several ranks do not try
    for one in [command.wait() for command in together(words, folder / "bad", ranks, before=before)]:
        _check_line(one, f"became NaN or infinite at step {STEP + 1}{again};")
    _check_finite(out)
    repeated = [command.wait() for command in together(words, folder / "again", ranks)]
    assert all(one.code == 0 for one in repeated), repeated
    assert scenario.outcome(out) == expected


def rate(optimizer: str, folder: Path, shared: Path) -> None:
    out = folder / "out"
    words = [*SCENARIOS["supervised"].words(shared, out), "--optimizer.kind", optimizer, "--optimizer.lr", "1e20"]
    (ended,) = [command.wait() for command in together(words, folder / "said", 1)]
    _check_line(ended, "became NaN or infinite at step")
    _check_finite(out)


def picture(value: float, folder: Path, shared: Path) -> None:
    """Of floating-point pixels. It is left out, and named."""
    where, out = shutil.copytree(pictures(shared), folder / "pictures"), folder / "out"
    pixels = np.full((28, 28), 0.5, np.float32)
    pixels[3, 5] = value
    Image.fromarray(pixels).save(where / "train" / "dark" / "0.tiff")
    (where / "train" / "dark" / "0.png").unlink()
    words = [*SCENARIOS["supervised"].words(shared, out), "--data.where", str(where), "--data.max_unreadable", "5"]
    ended = run(words, folder / "said")
    assert "1 unreadable pictures were skipped" in ended.printed, ended
    assert "0.tiff" in (out / "results.json").read_text()
    _check_finite(out)


def _check_line(ended: Ended, words: str) -> None:
    lines = [line for line in ended.errors.splitlines() if not line.startswith("warning at step")]
    assert ended.code == 2 and len(lines) == 1 and words in lines[0], ended


def _check_finite(out: Path) -> None:
    for path in [*Checkpoints(out / "checkpoints").paths().values(), *out.glob("model")]:
        for stem, named in own.read_folder(path).tensors.items():
            for name, tensor in named.items():
                assert torch.isfinite(tensor.float()).all(), f"{path.name} {stem} {name} holds no numbers"


TRIALS: dict[str, Callable[[Path, Path], None]] = {
    **{f"loss {value}": partial(passing, partial(_in_loss, value), "supervised", 1) for value in (NAN, INF, -INF)},
    **{
        f"gradient {value}": partial(passing, partial(_in_gradient, value), "supervised", 1)
        for value in (NAN, INF, -INF)
    },
    **{f"picture {value}": partial(picture, value) for value in (NAN, INF, -INF)},
    **{f"rate 1e20 {optimizer}": partial(rate, optimizer) for optimizer in ("AdamW", "SGD", "Muon")},
    "loss nan, MAE": partial(passing, partial(_in_loss, NAN), "mae", 1),
    "gradient inf, DINO": partial(passing, partial(_in_gradient, INF), "dino", 1),
    "loss nan on one of two ranks": partial(passing, partial(_in_loss, NAN, 1), "longer", 2),
}


def trial(number: int, folder: Path, shared: Path) -> Facts:
    name = list(TRIALS)[number % len(TRIALS)]
    TRIALS[name](folder, shared)
    return {"fault": name}


CAMPAIGN = Campaign(
    name="numbers",
    promise="NaN or infinity in picture, loss or gradient, or a rate of 1e20: never in a checkpoint; a clear line",
    full=len(TRIALS),
    trial=trial,
    short=(0, 9),
)
