"""First models: complete models, made within seconds, that later ones have to beat."""

from dataclasses import dataclass, replace
from pathlib import Path

from vitreous.display.words import counted
from vitreous.recipes.recipe import Recipe
from vitreous.weights.calibration import Calibration
from vitreous.weights.trained import Trained

ON_PIXELS, FIRST_MODEL = "logistic regression on pixels", "first model"  # as candidates
PIXELS, FIRST = "pixels", "first"  # their folders in the run directory


@dataclass(frozen=True, kw_only=True)
class FirstModel:
    name: str  # as a candidate
    folder: str  # in the run directory
    start: str  # the encoder, as --from takes it; "pixels" for none
    digest: str  # sha256 of its tensors; empty for none
    picture_px: tuple[int, int]
    head: str  # how its linear head was fitted
    penalty: float | None = None  # of a head that has one
    log_loss: float | None = None  # on pictures the head has not seen, if it was chosen by that
    headline: str  # what the scores below are: accuracy, mAP, mIoU
    score: float | None  # on pictures the head has not seen; None: there are none
    val_score: float | None  # on the validation part
    pictures: int  # training pictures that it was fitted to
    views: int  # augmented ones of each, besides the picture itself
    picture_s: float  # seconds per picture
    ready_s: float  # seconds since the command began

    def words(self) -> str:
        scored = ""
        if self.val_score is not None:
            scored = f": {self.headline} {100 * self.val_score:.1f} % on the validation part"
        elif self.score is not None:
            scored = f": {self.headline} {100 * self.score:.1f} % on training pictures left out in turn"
        of = self.start if not self.digest else f"frozen features of {self.start}"
        learned = f"{self.head} on {of}, {counted(self.pictures, 'picture')}"
        return f"first model after {self.ready_s:.0f} s{scored} ({learned})"

    def is_as_good_as(self, other: "FirstModel | None") -> bool:
        return other is None or self.score is None or other.score is None or self.score >= other.score


@dataclass(frozen=True, kw_only=True)
class Made:
    """A first model that is not scored yet."""

    model: Trained
    recipe: Recipe  # which says how it sees pictures
    head: str
    penalty: float | None = None
    log_loss: float | None = None
    headline: str
    pictures: int
    views: int = 0
    picture_s: float


def calibrated(trained: Trained, calibration: Calibration | None) -> Trained:
    """With its confidence corrected by the validation part."""
    return trained if calibration is None else replace(trained, card=replace(trained.card, calibration=calibration))


def save_both(
    trained: Trained, calibration: Calibration | None, out: Path, folder: str, *, delivers: bool = True
) -> None:
    """Uncalibrated, to continue training from; and calibrated, as the run's model so far."""
    trained.save(out / folder)
    if delivers:
        calibrated(trained, calibration).save(out / "model")
