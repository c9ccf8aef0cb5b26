"""Starts: the published encoder that `fit` starts from, if the `hub` extra is installed and there is enough time.

    found = best_start(Work(kind="cpu", threads=2, num_pictures=1000, seconds=240))
    if found.where is None:
        ...  # go on with the encoder that ships; `found.why` is the line for the plan and the report
    else:
        Trained.load(found.where)  # "timm:NAME@COMMIT": the weights are in the cache already

Costs decide: a start is used if downloading it, and reading all pictures once with it at 224 px (the size of its
preprocessing; DINOv2's positions are for larger ones), leaves most of the time for fine-tuning. The speed is measured
on this machine, with whatever else it does. Sizes, licences and revisions are from the model cards (November 2026).
"""

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.weights import hub

PATIENCE_S = 10.0  # without an answer from the hub
DEFAULT_S = 600.0  # the budget if none was given
SHARE = 0.25  # of the budget, for downloading a start and reading every picture once with it
# Multiply-adds a second. A CPU core with nothing else to do: ViT-S/16 at 62 ms per picture on 2 cores. A GPU: a tenth
# of what an H200 does.
CPU_CORE_GMACS, GPU_GMACS = 37.0, 20_000.0
DOWNLOAD_MB_S = 5.0  # a home connection
MEASURED = 8  # pictures


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a start has to be fast enough for."""

    kind: Literal["cpu", "cuda"]
    threads: int  # of the CPU
    num_pictures: int  # to read: training, validation and test
    seconds: float = DEFAULT_S  # what is left of the budget
    gmacs: float | None = None  # multiply-adds a second, in billions; measured if not given

    @property
    def speed(self) -> float:
        return self.gmacs or (GPU_GMACS if self.kind == "cuda" else CPU_CORE_GMACS * self.threads)


@dataclass(frozen=True, kw_only=True)
class Start:
    where: str  # timm:NAME or hf:OWNER/NAME
    revision: str  # a commit or a branch; what it resolves to is recorded
    licence: str
    megabytes: float
    parameters: int
    gmacs: float  # of one picture of 224 px
    suits: str

    @property
    def address(self) -> str:
        return f"{self.where}@{self.revision}"

    def seconds(self, work: Work, is_cached: bool) -> float:
        """The time to download it and to read every picture once."""
        return work.num_pictures * self.gmacs / work.speed + (0.0 if is_cached else self.megabytes / DOWNLOAD_MB_S)


# The best first: frozen features of DINOv2 transfer best for their size, AugReg's come cheaper.
STARTS = (
    Start(
        where="hf:facebook/dinov2-base",
        revision="main",
        licence="apache-2.0",
        megabytes=346.0,
        parameters=86_580_480,
        gmacs=23.2,
        suits="a GPU",
    ),
    Start(
        where="hf:facebook/dinov2-small",
        revision="ed25f3a31f01632728cabb09d1542f84ab7b0056",
        licence="apache-2.0",
        megabytes=88.2,
        parameters=22_056_576,
        gmacs=6.1,
        suits="a GPU; 2 cores: 500 pictures in 4 minutes",
    ),
    Start(
        where="timm:vit_small_patch16_224.augreg_in21k_ft_in1k",
        revision="main",
        licence="apache-2.0",
        megabytes=88.2,
        parameters=22_050_664,
        gmacs=4.6,
        suits="2 cores: 680 pictures in 4 minutes",
    ),
    Start(
        where="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        revision="main",
        licence="apache-2.0",
        megabytes=22.9,
        parameters=5_717_416,
        gmacs=1.25,
        suits="2 cores: 3,300 pictures in 4 minutes",
    ),
)


EVERYWHERE = tuple(start.where for start in STARTS)


class Found(NamedTuple):
    where: str | None  # for Trained.load, with the commit; None: start from what ships
    why: str  # one line
    trouble: str = ""  # with the hub, if there was any


def best_start(work: Work, say: Callable[[str], None] = print) -> Found:
    """The best start that there is time for, already in the cache; or none, and why. Never raises.

    `say` is told what is downloaded, and its size.
    """
    try:
        return _best(work, say)
    except Exception as error:  # of any kind: there is the encoder that ships
        reason = str(error).strip().splitlines() or [type(error).__name__]
        trouble = f"no start from the hub: {reason[0][:200]}"
        return Found(None, trouble, trouble)


def _best(work: Work, say: Callable[[str], None]) -> Found:
    if not hub.is_installed():
        able, more = affordable(work), ""
        if not able:
            able, more = STARTS[-1:], " and more time"
        return Found(None, f"with pip install 'vitreous[hub]'{more} it could start from {described(able[0])}")
    possible = affordable(work, EVERYWHERE)
    cached = {start.where: path.name for start in possible if (path := hub.in_cache(start.address))}
    if possible and not cached and hub.is_offline():
        return Found(None, "no start from the hub: HF_HUB_OFFLINE is set, and the cache has none")
    if possible and work.kind == "cpu" and work.gmacs is None:
        work = replace(work, gmacs=min(work.speed, _measured_gmacs()))
    able = affordable(work, cached)
    if not able:
        return Found(None, _too_slow(work))
    trouble = ""
    if able[0].where not in cached and not hub.is_offline():
        limit_s = SHARE * work.seconds
        try:
            # Without bars: a late download continues in the background, and must not show among later output.
            folder = hub.within(
                limit_s,
                lambda: hub.fetch(
                    able[0].address,
                    silence_s=PATIENCE_S,
                    has_bars=False,
                    on_download=lambda: say(f"Downloading {described(able[0])}"),
                ),
            )
            return _found(able[0], folder.name)
        except TimeoutError:
            trouble = f"{able[0].where}: not downloaded within {limit_s:.0f} s"
        except hub.UnreachableError:
            trouble = "the hub cannot be reached"
        except UserError as error:
            trouble = str(error)
    here = [start for start in able if start.where in cached]
    if here:
        return _found(here[0], cached[here[0].where], trouble)
    if trouble:
        return Found(None, trouble, trouble)
    return Found(None, "no start from the hub: HF_HUB_OFFLINE is set, and the cached ones take too long")


def _measured_gmacs() -> float:
    """The present speed of this CPU, by an encoder of the smallest start's shape on some pictures."""
    import torch

    from vitreous.models import ViTSettings

    encoder = ViTSettings(picture_px=(224, 224), patch=16, width=192, depth=12, heads=3).build().eval()
    images = torch.zeros(MEASURED, 3, 224, 224)
    with torch.no_grad():
        encoder(images)
        began = time.perf_counter()
        encoder(images)
    return MEASURED * STARTS[-1].gmacs / (time.perf_counter() - began)


def affordable(work: Work, cached: Container[str] = ()) -> tuple[Start, ...]:
    """Those that there is time for, the best first."""
    return tuple(start for start in STARTS if start.seconds(work, start.where in cached) <= SHARE * work.seconds)


def _too_slow(work: Work) -> str:
    least = STARTS[-1]
    if affordable(work, EVERYWHERE):
        return f"no start from the hub: {work.seconds:.0f} s are too short to download one"
    return (
        f"no start from the hub: {least.where}, the smallest, would take {least.seconds(work, is_cached=True):.0f} s "
        f"of {work.seconds:.0f} s to read {counted(work.num_pictures, 'picture')} once"
    )


def _found(start: Start, commit: str, trouble: str = "") -> Found:
    why = f"{described(start)}, suits {start.suits}"
    return Found(f"{start.where}@{commit}", f"{why}; from the cache, as {trouble}" if trouble else why, trouble)


def described(start: Start) -> str:
    return (
        f"{start.where} ({start.megabytes:.0f} MB, {start.parameters / 1e6:.1f} M parameters, licence {start.licence})"
    )
