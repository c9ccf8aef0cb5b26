"""Transfer: the trained encoder that a fit starts from, and the size of its pictures; or none, and why."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vitreous.data.check import DataReport
from vitreous.evaluation.heads import ENOUGH_TO_JUDGE
from vitreous.fitting.budget import FIGURES_S, TRAINING_PASSES, least_after_s
from vitreous.fitting.starts import Work, best_start
from vitreous.fitting.wishes import DEFAULT_S, Hardware, Wishes
from vitreous.training.devices import World, autocast
from vitreous.weights.shipped import shipped
from vitreous.weights.trained import Trained

MOST_PX, MEDIUM_PX = 128, 64  # sizes for photographs and for smaller pictures: larger ones would show no more
SIZES = (128, 96, 64, 48)  # px that the encoders that ship take, the best first
EMBED_SHARE = 0.35  # of the time, for the features of all training and validation pictures
LEAST_EMBEDDED = 500  # training pictures, of which features have to be there for a head that is worth its time
TIMED_PX = 64
TIMED_PICTURES = 16
ENOUGH_TO_LEARN = 2000  # training pictures, from which random weights may come to better features
TELLING = 0.8  # of the errors on pixels: an encoder whose features leave more is of little use for these pictures
# With less time than for so many passes of fine-tuning, features have to be further ahead: of 10,800 pictures of
# clothes a small network learned more in 4 minutes (89.5 % of the validation part) than came of 0.6 passes (88.5 %),
# though features left 0.72 of the errors on pixels; of 1,000 such pictures far less (81.2 against 86.0 %).
ENOUGH_PASSES, TELLING_AT_ONCE = 2.0, 0.6
NONE = "none"  # --from none


@dataclass(frozen=True, kw_only=True)
class Start:
    """The encoder that a fit starts from."""

    where: str  # as given to --from
    why: str
    digest: str  # sha256 of its tensors, by name
    picture_px: tuple[int, int]
    picture_s: float  # seconds per picture at that size
    is_chosen: bool  # rather than given by the user: another may be better


class Scratch(NamedTuple):
    why: str


Found = Start | Scratch


def check_start(where: str | None) -> None:
    """An error, before any picture is read, if there are no such weights, or none that can be read."""
    if where not in (None, NONE):
        Trained.load(where)


def starting(
    report: DataReport,
    hardware: Hardware,
    wishes: Wishes,
    elapsed_s: float,
    say: Callable[[str], None],
    *,
    passes: float = 1.0,
) -> Found:
    """What the user gave, what the hub has for this hardware and time, or what ships; or none of these. `passes`: how
    often every training picture has to go through an encoder before it is useful."""
    if wishes.start == NONE:
        return Scratch("as you asked (--from none)")
    left_s = max(1.0, (wishes.budget_s or DEFAULT_S) - elapsed_s)
    if wishes.start in shipped():
        return _shipped((wishes.start,), "as you asked", report, hardware, wishes, left_s=left_s, passes=passes)
    if wishes.start is not None:
        return _prepared(Trained.load(wishes.start), "as you asked", hardware, wishes)
    if wishes.gives_a_model:
        return Scratch("you chose the model; --from NAME would start from trained weights")
    num_pictures = sum(part.pictures for part in report.parts)
    work = Work(kind=hardware.kind, threads=torch.get_num_threads(), num_pictures=num_pictures, seconds=left_s)
    published = best_start(work, say=say)
    if published.where is not None:
        found: Found = _prepared(Trained.load(published.where), published.why, hardware, wishes)
    elif shipped():
        why = f"ships with the package; {published.why}"
        found = _shipped(shipped(), why, report, hardware, wishes, left_s=left_s, passes=passes)
    else:
        found = Scratch(f"no encoder ships with this copy; {published.why}")
    if published.trouble:
        say(f"{published.trouble}; going on with {found.where if isinstance(found, Start) else 'random weights'}")
    return found


def reconsidered(
    start: Found, val_score: float | None, pixels_score: float | None, report: DataReport, left_s: float
) -> Found:
    """Random weights if a chosen encoder's features are hardly better than pixels, as for small grey digits, and there
    are enough pictures to learn better ones. `left_s`: what is left of the time."""
    if isinstance(start, Scratch) or not start.is_chosen or val_score is None or pixels_score is None:
        return start
    val = report.part("val")
    if val is None or val.pictures < ENOUGH_TO_JUDGE or report.num_train < ENOUGH_TO_LEARN:
        return start
    passes = left_s / (TRAINING_PASSES * start.picture_s * report.num_train)
    most = TELLING if passes >= ENOUGH_PASSES else TELLING_AT_ONCE
    if 1 - val_score <= most * (1 - pixels_score):
        return start
    return Scratch(
        f"features of {start.where} reach {100 * val_score:.1f} % on the validation part, the pixels alone "
        f"{100 * pixels_score:.1f} %: too small a lead to start from them; --from {start.where} does so anyway"
    )


def _shipped(
    names: tuple[str, ...],
    why: str,
    report: DataReport,
    hardware: Hardware,
    wishes: Wishes,
    *,
    left_s: float,
    passes: float,
) -> Found:
    """The largest pictures that time allows, then the larger encoder: its features at 64 px are better than the smaller
    one's at 128, and cheaper. None if there is no time for the features of any; the time for scoring them is not
    counted, since late numbers are better than a model of pixels."""
    largest = MOST_PX if min(report.heights[1], report.widths[1]) > MEDIUM_PX else MEDIUM_PX
    sizes = [px for px in SIZES if px <= largest]
    needs_s = 0.0
    for name in reversed(names):
        trained = Trained.load(name, picture_px=TIMED_PX)
        timed_s = _timed(trained, hardware)
        for px in sizes:
            picture_s = timed_s * (px / TIMED_PX) ** 2
            is_least = (name, px) == (names[0], sizes[-1])
            needs_s = _embedded_s(report, picture_s) + (
                FIGURES_S if is_least else least_after_s(left_s, report, picture_s)
            )
            if wishes.budget_s is not None and needs_s > left_s and not wishes.gives("model.picture_px"):
                continue
            is_short = picture_s * (passes * report.num_train + report.size("val")) > EMBED_SHARE * left_s
            if not is_short or is_least or wishes.gives("model.picture_px"):
                why += "" if (name, px) == (names[-1], sizes[0]) else "; there is no time for more"
                return _prepared(Trained.load(name, picture_px=px), why, hardware, wishes)
    return Scratch(
        f"features of {names[0]} would take about {needs_s:.0f} s with the report, and {left_s:.0f} s "
        "are left; --minutes gives more"
    )


def _embedded_s(report: DataReport, picture_s: float) -> float:
    """The time for the features of a first model: of some training pictures and the whole validation part."""
    return picture_s * (min(report.num_train, LEAST_EMBEDDED) + report.size("val"))


def _prepared(trained: Trained, why: str, hardware: Hardware, wishes: Wishes) -> Start:
    size = trained.card.preprocessing.size_px
    if wishes.gives("model.picture_px"):
        given = [int(side) for side in wishes.changes["model.picture_px"].split(",")]
        size = (given[0], given[-1])
    return Start(
        where=trained.where,
        why=why,
        digest=_digest(trained),
        picture_px=size,
        picture_s=_timed(trained.resized(size), hardware),
        is_chosen=wishes.start is None,
    )


@torch.no_grad()
def _timed(trained: Trained, hardware: Hardware, rounds: int = 2) -> float:
    """Seconds per picture, measured on a few pictures of noise."""
    device = World.join(hardware.kind).device
    encoder = trained.encoder().to(device).eval()
    images = torch.randn(TIMED_PICTURES, 3, *trained.card.preprocessing.size_px, device=device)

    def once() -> float:
        began = time.perf_counter()
        with autocast(device, "auto"):
            encoder(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / len(images)

    once()
    return sum(once() for _ in range(rounds)) / rounds  # next to other programs, the best round would be too optimistic


def _digest(trained: Trained) -> str:
    found = hashlib.sha256()
    for name in sorted(name for name in trained.weights if name.startswith("encoder.")):
        found.update(name.encode())
        found.update(trained.weights[name].detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
