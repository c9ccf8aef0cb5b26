"""Records: what `vitreous predict` writes about a picture, by kind of task: as JSON, as cells of a CSV, as a line.

A new kind is a class here and one line in RECORDS.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from vitreous.data.kinds import TaskKind
from vitreous.display.words import class_in_words, percent
from vitreous.errors import UserError
from vitreous.prediction.box_outcomes import BoxOutcome, FoundObject
from vitreous.prediction.outcomes import ClassOutcome, ManyOutcome, no_such_coverage
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.reading import Reading
from vitreous.terminal import display_width, padded
from vitreous.weights.calibration import BoxCalibration, ClassCalibration

Record = dict[str, Any]
MAX_WIDTH = 30  # of the first column of lines


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked to see."""

    top: int = 5  # how many classes to name
    coverage: float | None = None  # of the prediction set
    abstain: float = 0.0  # classes with a lower probability are not named
    score: float | None = None  # of objects: the least
    precision: float | None = None  # of objects: the share that should be right


class Records(ABC):
    FINDS_OBJECTS: ClassVar[bool] = False
    INSTEAD: ClassVar[str | None] = None  # what a model without prediction sets does

    def __init__(self, reading: Reading, wanted: Wanted) -> None:
        self.reading, self.wanted = reading, wanted
        if self.INSTEAD is not None and wanted.coverage is not None:
            raise UserError(f"prediction sets are for models of one class per picture; this one {self.INSTEAD}")
        if not self.FINDS_OBJECTS and (wanted.score, wanted.precision) != (None, None):
            raise UserError("--score and --precision are for models that find objects, and this one does not")

    @abstractmethod
    def record(self, outcome: Any) -> Record:
        """For JSON, without the picture's name."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """Of a CSV, without those of the picture's name and of errors."""

    @abstractmethod
    def cells(self, record: Record) -> list[Any]:
        """One per column."""

    @abstractmethod
    def line(self, picture: str, record: Record) -> str:
        """For a terminal. The picture's name comes after the columns that line up, since its length is not known."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Of the columns before the picture's name in a line."""


class ClassRecords(Records):
    NOT_SURE: ClassVar[str] = "not sure"

    def __init__(self, reading: Reading, wanted: Wanted) -> None:
        super().__init__(reading, wanted)
        sets = reading.calibration.sets if isinstance(reading.calibration, ClassCalibration) else ()
        if wanted.coverage is not None and wanted.coverage not in dict(sets):
            raise UserError(no_such_coverage(wanted.coverage, sets))

    def record(self, outcome: Any) -> Record:
        assert isinstance(outcome, ClassOutcome)
        found: Record = {"label": outcome.best if outcome.is_sure(self.wanted.abstain) else None}
        found["probability"] = round(outcome.confidence, 6)
        found["top"] = [[name, round(probability, 6)] for name, probability in outcome.top(self.wanted.top)]
        if self.wanted.coverage is not None:
            found["set"] = list(outcome.prediction_set(self.wanted.coverage))
        return found

    @property
    def columns(self) -> list[str]:
        others = [f"{what}_{place}" for place in range(2, self.wanted.top + 1) for what in ("class", "probability")]
        return ["label", "probability", *others, *(["set"] if self.wanted.coverage is not None else [])]

    def cells(self, record: Record) -> list[Any]:
        others = [part for pair in record["top"][1:] for part in pair]
        others += [""] * (2 * (self.wanted.top - 1) - len(others))  # there are fewer classes than were asked for
        chosen = ["|".join(record["set"])] if "set" in record else []
        return [record["label"] or self.NOT_SURE, record["probability"], *others, *chosen]

    def line(self, picture: str, record: Record) -> str:
        top = record["top"] if record["label"] is None else record["top"][1:]
        also = ", ".join(f"{name} {percent(probability)}" for name, probability in top)
        chosen = f"  {{{', '.join(record['set'])}}}" if "set" in record else ""
        label = record["label"] or self.NOT_SURE
        sure = percent(record["probability"])
        return f"{padded(label, self.width - 9)}  {sure:>7}  {picture}{chosen}{also and f'  ({also})'}"

    @property
    def width(self) -> int:
        return min(max(map(display_width, (*self.reading.classes, self.NOT_SURE))), MAX_WIDTH) + 9


class ManyRecords(Records):
    INSTEAD: ClassVar[str] = "gives several labels"
    NONE: ClassVar[str] = "no label"

    def record(self, outcome: Any) -> Record:
        assert isinstance(outcome, ManyOutcome)
        labels = [one for one in outcome.labels if one[1] >= self.wanted.abstain]
        found: Record = {"labels": [[name, round(probability, 6)] for name, probability in labels]}
        found["top"] = [[name, round(probability, 6)] for name, probability in outcome.top(self.wanted.top)]
        return found

    @property
    def columns(self) -> list[str]:
        places = [f"{what}_{place}" for place in range(1, self.wanted.top + 1) for what in ("class", "probability")]
        return ["labels", "probabilities", *places]

    def cells(self, record: Record) -> list[Any]:
        likeliest = [part for pair in record["top"] for part in pair]
        likeliest += [""] * (2 * self.wanted.top - len(likeliest))
        names, probabilities = ("|".join(str(pair[place]) for pair in record["labels"]) for place in (0, 1))
        return [names, probabilities, *likeliest]

    def line(self, picture: str, record: Record) -> str:
        chosen = ", ".join(f"{name} {percent(probability)}" for name, probability in record["labels"])
        names = {name for name, _ in record["labels"]}
        others = ", ".join(f"{name} {percent(probability)}" for name, probability in record["top"] if name not in names)
        return f"{padded(chosen or self.NONE, self.width)}  {picture}{others and f'  (not: {others})'}"

    @property
    def width(self) -> int:
        return MAX_WIDTH


class PixelRecords(Records):
    """Which share of a picture each class has; the masks themselves go into files."""

    INSTEAD: ClassVar[str] = "classifies pixels"

    def record(self, outcome: Any) -> Record:
        assert isinstance(outcome, PixelOutcome)
        height, width = outcome.labels.shape
        return {
            "width": width,
            "height": height,
            "shares": [[name, round(share, 6)] for name, share in outcome.shares],
            "confidence": round(float(outcome.confidence.mean()), 6),
        }

    @property
    def columns(self) -> list[str]:
        return ["width", "height", "confidence", *self.reading.classes]

    def cells(self, record: Record) -> list[Any]:
        shares = dict(record["shares"])
        found = [shares.get(name, 0.0) for name in self.reading.classes]
        return [record["width"], record["height"], record["confidence"], *found]

    def line(self, picture: str, record: Record) -> str:
        shares = ", ".join(
            f"{class_in_words(name)} {percent(share)}" for name, share in record["shares"][: self.wanted.top]
        )
        return f"{percent(record['confidence']):>7} sure  {picture}  {shares}"

    @property
    def width(self) -> int:
        return 12


class BoxRecords(Records):
    """The objects of a picture, most confident first."""

    FINDS_OBJECTS: ClassVar[bool] = True
    INSTEAD: ClassVar[str] = "finds objects"
    NONE: ClassVar[str] = "nothing found"

    def __init__(self, reading: Reading, wanted: Wanted) -> None:
        super().__init__(reading, wanted)
        self.least = least_score(reading, wanted)

    def record(self, outcome: Any) -> Record:
        assert isinstance(outcome, BoxOutcome)
        objects = [self._object(one) for one in outcome.objects(self.least)]
        return {"width": outcome.size[1], "height": outcome.size[0], "objects": objects}

    def _object(self, one: FoundObject) -> Record:
        return {"label": one.label, "score": round(one.score, 6), "box": [round(side, 2) for side in one.box]}

    @property
    def columns(self) -> list[str]:
        return ["width", "height", "objects", "labels", "scores", "boxes"]

    def cells(self, record: Record) -> list[Any]:
        objects = record["objects"]
        labels, scores = ("|".join(str(one[name]) for one in objects) for name in ("label", "score"))
        boxes = "|".join(" ".join(map(str, one["box"])) for one in objects)
        return [record["width"], record["height"], len(objects), labels, scores, boxes]

    def line(self, picture: str, record: Record) -> str:
        found = [f"{one['label']} {percent(one['score'], 0)}" for one in record["objects"]]
        more = f" and {len(found) - self.wanted.top} more" if len(found) > self.wanted.top else ""
        objects = "object" if len(found) == 1 else "objects"
        return f"{len(found):3} {objects:7}  {picture}  {', '.join(found[: self.wanted.top]) or self.NONE}{more}"

    @property
    def width(self) -> int:
        return 11


class InstanceRecords(BoxRecords):
    """The same with their shapes: in JSON as COCO writes them, in tables as numbers of pixels."""

    def _object(self, one: FoundObject) -> Record:
        assert one.shape is not None
        return super()._object(one) | {"area": one.shape.area, "mask": one.shape.as_coco()}

    @property
    def columns(self) -> list[str]:
        return [*super().columns, "areas"]

    def cells(self, record: Record) -> list[Any]:
        return [*super().cells(record), "|".join(str(one["area"]) for one in record["objects"])]


def least_score(reading: Reading, wanted: Wanted) -> float | None:
    """The lowest score that is reported; None: as the model's card says."""
    if wanted.precision is None:
        return wanted.score
    known = reading.calibration.thresholds if isinstance(reading.calibration, BoxCalibration) else ()
    for share, least in known:
        if abs(share - wanted.precision) < 1e-9:
            return least
    shares = ", ".join(f"{share:g}" for share, _ in known)
    raise UserError(
        f"this model has no threshold for a precision of {wanted.precision:g}"
        + (f", only for {shares}" if known else ": they are fitted on a validation part, after training")
    )


RECORDS: dict[TaskKind, type[Records]] = {
    "classify": ClassRecords,
    "label": ManyRecords,
    "segment": PixelRecords,
    "detect": BoxRecords,
    "instances": InstanceRecords,
}


def records(reading: Reading, wanted: Wanted) -> Records:
    if reading.kind not in RECORDS:
        raise UserError("this model compares pictures with texts, and predicts nothing by itself: use `vitreous embed`")
    return RECORDS[reading.kind](reading, wanted)
