"""First models: whole ones, made within seconds, which later ones have to beat."""

from dataclasses import dataclass, replace
from pathlib import Path

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
    log_loss: float | None = None  # on what the head has not seen, where it was chosen by that
    headline: str  # what the scores below are: accuracy, mAP, mIoU
    score: float | None  # on pictures the head has not seen; None: there are none
    val_score: float | None  # on the validation part
    pictures: int  # of train that it was fitted to
    views: int  # altered ones of each, beside the picture itself
    picture_s: float  # a picture takes
    ready_s: float  # since the command began

    def words(self) -> str:
        scored = ""
        if self.val_score is not None:
            scored = f": {self.headline} {self.val_score:.1%} on the validation part"
        elif self.score is not None:
            scored = f": {self.headline} {self.score:.1%} on training pictures left out in turn"
        of = self.start if not self.digest else f"frozen features of {self.start}"
        return f"first model after {self.ready_s:.0f} s{scored} ({self.head} on {of}, {self.pictures:,} pictures)"

    def is_as_good_as(self, other: "FirstModel | None") -> bool:
        return other is None or self.score is None or other.score is None or self.score >= other.score


def calibrated(trained: Trained, calibration: Calibration | None) -> Trained:
    """With what the validation part tells of its confidence."""
    return trained if calibration is None else replace(trained, card=replace(trained.card, calibration=calibration))


def save_both(
    trained: Trained, calibration: Calibration | None, out: Path, folder: str, *, delivers: bool = True
) -> None:
    """As it is, to go on from; and calibrated, as what the run delivers so far."""
    trained.save(out / folder)
    if delivers:
        calibrated(trained, calibration).save(out / "model")
