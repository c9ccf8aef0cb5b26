"""How well objects are found, every number with its 95 % interval, from drawing whole pictures again (bootstrap)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous import settings
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.display.words import counted
from vitreous.evaluation.box_matches import KINDS, NONE, Matches, matches
from vitreous.evaluation.box_resampling import Ranked, draws, ranked
from vitreous.evaluation.metrics import Estimate, cell
from vitreous.tasks import box_precision
from vitreous.tasks.box_precision import SIZES, THRESHOLDS, Floats, Found, Rle, Truth
from vitreous.weights.calibration import BoxCalibration

BINS = 10  # of scores, of equal width
LEAST_SCORE = 0.05  # detections below it are left out of the calibration error
LEAST_JUDGED = 20  # detections with such scores that say something of their error
TOO_FEW = f"fewer than {LEAST_JUDGED} scores of {LEAST_SCORE:g} or more"
LISTED = 24  # mistakes per kind to list
ERRORS = {"class": "Cls", "place": "Loc", "both": "Both", "duplicate": "Dupe", "background": "Bkg", "missed": "Miss"}


@dataclass(frozen=True)
class ClassBoxes:
    name: str
    objects: int
    pictures: int  # that have some
    ap: Estimate | None  # None if there are no objects of the class, as below
    ap50: Estimate | None
    recall: float | None  # at the threshold
    precision: float | None  # None if none is shown
    curve: tuple[float, ...]  # precision at recalls 0, 0.01 ... 1, overlap one half; empty without objects


@dataclass(frozen=True)
class SizedBoxes:
    size: str
    objects: int
    ap: Estimate


@dataclass(frozen=True)
class ErrorKind:
    kind: str
    number: int  # at the threshold
    ap50: float  # what AP50 would gain without errors of this kind, whatever their score


@dataclass(frozen=True)
class ScoreBin:
    low: float
    high: float
    detections: int
    score: float | None  # mean; None if the bin is empty
    right: float | None  # share


def can_be_judged(bins: Sequence[ScoreBin]) -> bool:
    """Whether there are enough scores for their error to say something."""
    return sum(one.detections for one in bins) >= LEAST_JUDGED


@dataclass(frozen=True)
class PictureBoxes:
    """How many detections were shown for a picture, and how many of them were right."""

    id: int
    objects: int
    shown: int
    right: int

    @property
    def f1(self) -> float:
        """1 if there was nothing and nothing was shown."""
        return 2 * self.right / (self.objects + self.shown) if self.objects + self.shown else 1.0


@dataclass(frozen=True)
class Mistake:
    """A detection that is wrong, or an object that was missed."""

    picture: int  # id
    kind: str
    label: str  # what was predicted or missed
    score: float | None  # None: missed
    box: tuple[float, float, float, float]  # x0 y0 x1 y1 in px of the picture
    object: str | None = None  # the class of the object that a wrong detection is about
    object_box: tuple[float, float, float, float] | None = None
    shape: str | None = None  # the mask in COCO's run lengths; None: boxes were compared


@dataclass(frozen=True)
class BoxScores:
    pictures: int
    objects: int
    ap: Estimate  # mean over classes and thresholds of overlap from 0.5 to 0.95
    ap50: Estimate
    ap75: Estimate
    ar: Estimate  # share of the objects that are found at all, mean over the same
    by_size: tuple[SizedBoxes, ...]
    threshold: float  # the score from which detections are shown; the numbers below are for these
    precision: Estimate
    recall: Estimate
    ece: Estimate  # mean distance between score and share of right detections, for scores of at least 0.05
    per_class: tuple[ClassBoxes, ...]
    errors: tuple[ErrorKind, ...]
    bins: tuple[ScoreBin, ...]
    per_picture: tuple[PictureBoxes, ...]
    alarms: tuple[Mistake, ...]  # the most confident wrong detections
    missed: tuple[Mistake, ...]  # the largest objects that were missed

    @property
    def least(self) -> str:
        """The threshold in words: of a model that finds next to nothing it may be far below 0.01."""
        return f"{self.threshold:.2g} or more"

    def tables(self, num_classes: int = 20) -> tuple[Table, ...]:
        rows = [("AP", self.ap.percent()), ("AP50", self.ap50.percent()), ("AP75", self.ap75.percent())]
        rows += [(f"AP, {one.size} objects ({one.objects:,})", one.ap.percent()) for one in self.by_size]
        shown = f"scores of {self.least}"
        rows += [(f"precision, {shown}", self.precision.percent()), (f"recall, {shown}", self.recall.percent())]
        head = f"{counted(self.pictures, 'picture')}, {counted(self.objects, 'object')}"
        overall = Table((head, "measured (95 % interval)"), rows)
        seen = [one for one in self.per_class if one.ap is not None]
        listed = seen if len(seen) <= num_classes else sorted(seen, key=_ap)[:num_classes]
        first = "class" if len(seen) <= num_classes else f"the lowest {num_classes} of {len(seen)} classes"
        lines = [
            (one.name, f"{one.objects:,}", cell(one.ap), cell(one.ap50), *map(_share, _shown(one))) for one in listed
        ]
        per_class = Table((first, "objects", "AP", "AP50", "recall", "precision"), lines)
        kinds = [(one.kind, f"{one.number:,}", f"{100 * one.ap50:.1f}") for one in self.errors]
        return overall, per_class, Table(("error", shown, "AP50 lost by it"), kinds)


@dataclass(frozen=True)
class BoxEvaluation:
    """Everything that is measured for a model that finds objects."""

    scores: BoxScores  # on test; scores calibrated
    calibration: BoxCalibration  # fitted on validation pictures, or as given
    validation_pictures: int  # 0: nothing was fitted
    ece_before: Estimate  # of the scores as trained
    bins_before: tuple[ScoreBin, ...]
    by: Literal["boxes", "masks"] = "boxes"  # whose overlap decides what is found

    headline_name = "AP"

    def to_json(self) -> Any:
        return {"kind": settings.kind(type(self)), **settings.to_json(self)}

    @property
    def headline(self) -> Estimate:
        return self.scores.ap

    def tables(self) -> list[Table]:
        rows = [("as trained", self.ece_before.percent() if can_be_judged(self.bins_before) else TOO_FEW)]
        if self.calibration != BoxCalibration():
            rows.append(("calibrated", self.scores.ece.percent() if can_be_judged(self.scores.bins) else TOO_FEW))
        fitted = f"fitted on {self.validation_pictures:,} validation pictures" if self.validation_pictures else ""
        overlap = f"an object is found by the overlap of {self.by}"
        overall, *others = self.scores.tables()
        return [replace(overall, note=overlap), *others, Table(("scores", "ECE (95 % interval)"), rows, fitted)]

    def summary(self) -> str:
        """For the terminal."""
        return "\n\n".join(one.text() for one in self.tables())

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


def _ap(one: ClassBoxes) -> float:
    return 0.0 if one.ap is None else one.ap.value


def _shown(one: ClassBoxes) -> tuple[float | None, float | None]:
    return one.recall, one.precision


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


# ---- Measured


class Measured:
    """Detections in N pictures, matched with their objects once: everything else is counted from that."""

    def __init__(self, truth: Truth, found: Found, classes: Sequence[str], ids: Sequence[int]) -> None:
        """`ids`: of the pictures in their source; `truth` and `found` refer to pictures by their index in `ids`."""
        self.truth, self.found, self.classes, self.ids = truth, found, tuple(classes), tuple(ids)
        self.evaluator = box_precision.evaluator(truth, found, len(classes), len(ids))
        with box_precision.matched(self.evaluator) as entries:
            self.matches: Matches = matches(truth, found, entries)
            self.ranked: list[list[Ranked]] = ranked(entries, len(classes), len(ids))
            del entries
        self.times = draws(len(ids), len(found.picture))  # (1 + draws, N)

    def __len__(self) -> int:
        """Pictures."""
        return len(self.ids)

    def score(self) -> float:
        """AP."""
        return box_precision.mean(box_precision.precisions(self.evaluator)[..., 0]) or 0.0

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(D,): detections that are right or wrong; those of crowds are neither."""
        counted: NDArray[np.bool_] = self.matches.kind != KINDS.index("crowd")
        return counted

    def scores(self, probabilities: Floats, threshold: float) -> BoxScores:
        """`probabilities` (D,): the scores, calibrated; their order is that of the scores."""
        drawn = self._precisions()  # (1 + draws, 10, K, 4)
        shown = (probabilities >= threshold) & self.counted
        tp, fp, objects = self._per_picture(shown)
        every = self.times @ np.stack([tp, fp, objects], axis=1)  # (1 + draws, 3)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision, recall = every[:, 0] / (every[:, 0] + every[:, 1]), every[:, 0] / every[:, 2]
        ece, bins = self.reliability(probabilities)
        at75 = THRESHOLDS.index(0.75)
        return BoxScores(
            pictures=len(self.ids),
            objects=int((~self.truth.crowd).sum()),
            ap=_estimate(_mean(drawn[:, :, :, 0])),
            ap50=_estimate(_mean(drawn[:, 0, :, 0])),
            ap75=_estimate(_mean(drawn[:, at75, :, 0])),
            ar=_exact(box_precision.mean(box_precision.recalls(self.evaluator)[..., 0])),
            by_size=tuple(self._by_size(drawn)),
            threshold=threshold,
            precision=_estimate(precision),
            recall=_estimate(recall),
            ece=ece,
            per_class=tuple(self._per_class(drawn, shown)),
            errors=tuple(self._errors(shown)),
            bins=bins,
            per_picture=tuple(
                PictureBoxes(number, int(has), int(right + wrong), int(right))
                for number, right, wrong, has in zip(self.ids, tp, fp, objects, strict=True)
            ),
            alarms=tuple(self._alarms(probabilities)),
            missed=tuple(self._missed(shown)),
        )

    def _precisions(self) -> Floats:
        """(1 + draws, 10, K, 4): the first row is exactly the library's result."""
        by_class = [np.stack([one.precision(self.times) for one in sizes], axis=-1) for sizes in self.ranked]
        found = np.stack(by_class, axis=2)
        found[0] = box_precision.precisions(self.evaluator)
        return found

    def _per_picture(self, shown: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """(N,) each: right and wrong detections among those shown, and objects."""
        num, right = len(self.ids), self.matches.is_right
        parts = (self.found.picture[shown & right], self.found.picture[shown & ~right])
        owned = self.truth.picture[~self.truth.crowd]
        counts = [np.bincount(one, minlength=num).astype(np.float64) for one in (*parts, owned)]
        return counts[0], counts[1], counts[2]

    def reliability(self, probabilities: Floats) -> tuple[Estimate, tuple[ScoreBin, ...]]:
        """How far scores are from the share of right detections, and both by bins."""
        which = self.counted & (probabilities >= LEAST_SCORE)
        scores, right, owner = probabilities[which], self.matches.is_right[which], self.found.picture[which]
        place = np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)
        cell, size = owner * BINS + place, len(self.ids) * BINS
        kinds = [np.bincount(cell, weights, size) for weights in (None, scores, right.astype(np.float64))]
        sums = np.tensordot(self.times, np.stack([one.reshape(-1, BINS) for one in kinds], axis=1), axes=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            ece = np.abs(sums[:, 1] - sums[:, 2]).sum(axis=1) / sums[:, 0].sum(axis=1)
        bins = tuple(
            ScoreBin(at / BINS, (at + 1) / BINS, int(num), *((total / num, hits / num) if num else (None, None)))
            for at, (num, total, hits) in enumerate(sums[0].T.tolist())
        )
        return _estimate(ece), bins

    def _by_size(self, drawn: Floats) -> list[SizedBoxes]:
        limits = np.searchsorted([32**2, 96**2], self.truth.areas[~self.truth.crowd], side="right")
        means = [_mean(drawn[..., place]) for place in range(1, len(SIZES))]
        return [
            SizedBoxes(size, int((limits == place).sum()), _estimate(means[place]))
            for place, size in enumerate(SIZES[1:])
            if not np.isnan(means[place][0])
        ]

    def _per_class(self, drawn: Floats, shown: NDArray[np.bool_]) -> list[ClassBoxes]:
        curves = self.evaluator.eval["precision"][0, :, :, 0, -1]  # (101, K)
        right, counts = self.matches.is_right & shown, ~self.truth.crowd
        rows = []
        for label, name in enumerate(self.classes):
            mine, said = (self.truth.classes == label) & counts, shown & (self.found.classes == label)
            num, hits = int(mine.sum()), int((right & said).sum())
            rows.append(
                ClassBoxes(
                    name=name,
                    objects=num,
                    pictures=len(np.unique(self.truth.picture[mine])),
                    ap=_estimate(_mean(drawn[:, :, label, 0])) if num else None,
                    ap50=_estimate(drawn[:, 0, label, 0]) if num else None,
                    recall=hits / num if num else None,
                    precision=hits / int(said.sum()) if said.any() else None,
                    curve=tuple(curves[:, label].tolist()) if num else (),
                )
            )
        return rows

    def _errors(self, shown: NDArray[np.bool_]) -> list[ErrorKind]:
        gains, counts = self.evaluator.tide_errors()["delta_ap"], self.matches.counts(shown)
        return [ErrorKind(kind, counts[kind], float(gains[theirs])) for kind, theirs in ERRORS.items()]

    def _alarms(self, probabilities: Floats) -> list[Mistake]:
        wrong = np.flatnonzero(self.counted & ~self.matches.is_right)
        found = []
        for row in wrong[np.argsort(-probabilities[wrong], kind="stable")][:LISTED]:
            about = int(self.matches.nearest[row])
            found.append(
                Mistake(
                    picture=self.ids[self.found.picture[row]],
                    kind=KINDS[self.matches.kind[row]],
                    label=self.classes[self.found.classes[row]],
                    score=float(probabilities[row]),
                    box=_box(self.found.boxes[row]),
                    object=None if about == NONE else self.classes[self.truth.classes[about]],
                    object_box=None if about == NONE else _box(self.truth.boxes[about]),
                    shape=_shape(self.found.masks, row),
                )
            )
        return found

    def _missed(self, shown: NDArray[np.bool_]) -> list[Mistake]:
        rows = np.flatnonzero(self.matches.missed(shown))
        areas = self.truth.areas[rows]
        return [
            Mistake(
                picture=self.ids[self.truth.picture[row]],
                kind="missed",
                label=self.classes[self.truth.classes[row]],
                score=None,
                box=_box(self.truth.boxes[row]),
                shape=_shape(self.truth.masks, row),
            )
            for row in rows[np.argsort(-areas, kind="stable")][:LISTED]
        ]


def _box(sides: Floats) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = sides.round(2).tolist()
    return x0, y0, x1, y1


def _shape(masks: Sequence[Rle] | None, row: int) -> str | None:
    return None if masks is None else str(masks[row]["counts"])


def _mean(values: Floats) -> Floats:
    """(n, ...) -> (n,): over the defined values; NaN if there are none."""
    flat = values.reshape(len(values), -1)
    known = ~np.isnan(flat)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, flat, 0).sum(axis=1) / known.sum(axis=1)
    return mean


def _estimate(drawn: Floats) -> Estimate:
    """The value for all pictures, and the range of 95 % of the draws; 0 if there is no value at all."""
    value, others = float(np.nan_to_num(drawn[0])), drawn[1:][~np.isnan(drawn[1:])]
    low, high = np.quantile(others, (0.025, 0.975)).tolist() if len(others) else (value, value)
    return Estimate(value, min(low, value), max(high, value))


def _exact(value: float | None) -> Estimate:
    return Estimate(value or 0.0, value or 0.0, value or 0.0)
