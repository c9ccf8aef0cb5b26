"""What all studies share: the settings, one training recipe for every model, and the tables."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from matplotlib.figure import Figure

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.sources import DataSettings
from vitreous.display.words import percent
from vitreous.errors import UserError, did_you_mean
from vitreous.models import ModelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import small_pictures
from vitreous.studies.downstream import distinct_slugs, is_structured, test_split, transfer_recipe, without_overlap
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.models import StudyModel, size_of, study_model
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.devices import Compile, Precision
from vitreous.training.optim import MuonSettings

QUICK_PX = 28  # the embedded pictures


@dataclass(frozen=True, kw_only=True)
class Study:
    """Settings that every study has. The defaults suit pictures of CIFAR's size on one GPU."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]  # of the printed table: facts that rows are grouped by, then "value" columns
    values: ClassVar[tuple[str, ...]] = ("accuracy",)
    unused: ClassVar[tuple[str, ...]] = ()  # settings below that a study does not use
    may_be_nothing: ClassVar[tuple[str, ...]] = ("weight_decay", "label_smoothing", "val_fraction")  # 0, or empty
    shares: ClassVar[tuple[str, ...]] = ("label_smoothing", "val_fraction")  # at most 1
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}  # settings that name things -> the possible names

    data: str = "cifar10"  # the data to train on: a folder, a file, or a data set's name
    picture_px: int = 32  # side of the pictures
    patch: int | None = None  # patch size of ViTs; none: so that about 8 x 8 patches cover the picture
    seeds: int = 3  # runs of every reported cell
    steps: int = 4000  # optimizer steps of every training run
    batch_size: int = 256  # pictures per step
    rate: float = 2e-3  # peak learning rate of the matrices (Muon); half of it for everything else
    weight_decay: float = 0.5  # decoupled
    label_smoothing: float = 0.1  # share of the target spread over all classes
    augment: Literal["strong", "light"] = "strong"  # RandAugment, erasing and mixing; or only shifts and flips
    val_fraction: float = 0.1  # share of train used for choices and early stopping
    precision: Precision = "auto"  # of activations: bf16 on a GPU, fp32 elsewhere
    compile: Compile = "auto"  # on a GPU, where half a minute for each new shape pays off over many cells
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: cuda if there is a GPU; mps is experimental

    @classmethod
    def quick(cls, **changes: Any) -> Self:
        """Minutes on two CPU cores, with the embedded pictures: shows that it works, but proves nothing."""
        small = {
            "data": "fashion",
            "picture_px": QUICK_PX,
            "patch": 7,
            "seeds": 2,
            "steps": 60,
            "batch_size": 64,
            "rate": 2e-2,
            "val_fraction": 0.03,
            "augment": "light",
            "transfer": ("rendered:location",),
            "transfer_steps": 30,
            "transfer_examples": 400,
            "precision": "fp32",
            "compile": False,
            "device": "cpu",
        }
        own = {field.name for field in fields(cls)}
        fitting = {name: value for name, value in small.items() if name in own}
        return cls(**{**fitting, **cls.quick_changes(), **changes})

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        """The study's own changes to be quick."""
        return {}

    # ---- what a study does

    def check(self) -> None:
        """Reports impossible settings before the first cell is run."""
        for field in fields(self):
            self._check_setting(field.name, getattr(self, field.name))
        for name in (*getattr(self, "models", ()), getattr(self, "base", None)):
            if name is not None:
                size_of(self.model(name).settings)  # builds its shapes

    def _check_setting(self, name: str, value: Any) -> None:
        several, known = value if isinstance(value, tuple) else (value,), self.choices.get(name)
        may_be_nothing = name in self.may_be_nothing
        if not several and not may_be_nothing:
            raise UserError(f"--{name} is empty: give at least one")
        for one in several:
            if several.count(one) > 1:
                raise UserError(f"--{name} has {one} twice: give it once")
            if known is not None and one not in known:
                raise UserError(f"--{name}: no {one!r} among {', '.join(known)}.{did_you_mean(one, known)}")
            if type(one) not in (int, float):
                continue
            if not (one >= 0 if may_be_nothing else one > 0):
                raise UserError(f"--{name} is {one:g}: it must {'not be negative' if may_be_nothing else 'be above 0'}")
            if name in self.shares and one > 1:
                raise UserError(f"--{name} is {one:g}: it is a share, at most 1")

    def run(self, grid: Grid) -> None:
        """Run every cell with `grid.run`, in an order that gives a usable figure early."""
        raise NotImplementedError

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """The figures by name, from the rows so far."""
        raise NotImplementedError

    def findings(self, rows: Sequence[Row]) -> list[str]:
        """What the rows show beyond the table, one sentence each."""
        return []

    def table(self, rows: Sequence[Row]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        """Lines and header: one line per group of seeds, with mean and standard deviation."""
        groups = grouped(rows, self.columns, self.values)
        lines = [(*(_word(part) for part in key), *(spread(values) for values in found)) for key, found in groups]
        return lines, (*self.columns, *(name.replace("_", " ") for name in self.values))

    # ---- parts of recipes

    def model(self, name: str) -> StudyModel:
        return study_model(name, self.picture_px, self.patch)

    def recipe(self, name: str, model: ModelSettings, seed: int, leave_out: str = "") -> Recipe:
        """The same for every model, so that only the model differs."""
        recipe = small_pictures(name, model, epochs=1)
        return replace(
            recipe,
            data=DataSettings(
                where=self.data,
                val_fraction=self.val_fraction,
                test_split=test_split(self.data),
                leave_out=leave_out,
            ),
            objective=ClassifySettings(label_smoothing=self.label_smoothing),
            augmentation=self._augmentation(recipe.augmentation),
            optimizer=MuonSettings(lr=self.rate, weight_decay=self.weight_decay, adam_lr=self.rate / 2),
            average=replace(recipe.average, factor=0.995 if self.steps < 2000 else 0.999),
            training=replace(
                recipe.training,
                steps=self.steps,
                batch_size=self.batch_size,
                seed=seed,
                precision=self.precision,
                compile=self.compile,
                device=self.device,
            ),
        )

    def _augmentation(self, strong: Augmentation) -> Augmentation:
        if is_structured(self.data):  # shifts and flips would make labels wrong
            return Augmentation(crop=CropSettings(method="squash"), flip=0.0)
        light = Augmentation(crop=CropSettings(method="pad", pad_px=max(1, self.picture_px // 16), padding="reflect"))
        return strong if self.augment == "strong" else light

    def about(self) -> dict[str, Any]:
        return {"study": self.name, "settings": asdict(self)}


@dataclass(frozen=True, kw_only=True)
class TransferStudy(Study):
    """A study that fine-tunes its models on other sets."""

    may_be_nothing: ClassVar[tuple[str, ...]] = (*Study.may_be_nothing, "transfer", "transfer_steps")

    transfer: tuple[str, ...] = ("fashion",)  # other sets to transfer to
    transfer_steps: int = 500  # of fine-tuning; 0: none
    transfer_examples: int = 1000  # pictures that fine-tuning may use
    transfer_rate: float = 0.01  # learning rate of fine-tuning (SGD)

    @property
    def target_names(self) -> dict[str, str]:
        """The other sets, by distinct names."""
        return distinct_slugs(self.transfer)

    def transfer_cells(self, pretrained: Cell, folder: Path) -> list[Cell]:
        """Fine-tune a cell's model on every other set, with few examples."""
        assert pretrained.recipe is not None
        if not self.transfer_steps:
            return []
        return [
            Cell(
                name=f"{pretrained.name}-to-{name}",
                facts={**pretrained.facts, "target": where},
                recipe=transfer_recipe(
                    str(folder / pretrained.name),
                    pretrained.recipe.model,
                    pretrained.recipe.normalise,
                    DataSettings(
                        where=where,
                        val_fraction=0.0,
                        test_split=test_split(where),
                        examples=self.transfer_examples,
                    ),
                    steps=self.transfer_steps,
                    rate=self.transfer_rate,
                    training=replace(
                        pretrained.recipe.training, batch_size=min(self.batch_size, self.transfer_examples)
                    ),
                    keeps_sides=is_structured(where),
                ),
            )
            for where, name in self.target_names.items()
        ]

    def leave_out(self, grid: Grid) -> str:
        """The training pictures that occur in a test set we transfer to (paper, 4.1); their number is reported."""
        dropped = without_overlap(self.data, self.transfer, grid.folder / "overlap.json")
        grid.about["dropped_from_pretraining"] = {where: num for where, num, _ in dropped.sets}
        return dropped.leave_out


# ---- reporting results


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = percent(statistics.fmean(values), 2)
    return f"{mean} ± {100 * statistics.stdev(values):.2f} ({len(values)} seeds)" if len(values) > 1 else mean


def grouped(
    rows: Sequence[Row], facts: Sequence[str], values: Sequence[str]
) -> list[tuple[tuple[Any, ...], list[list[float]]]]:
    """The values over the seeds for every combination of facts, in order of appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "failed" not in row and any(value in row for value in values):
            found.setdefault(tuple(row.get(fact) for fact in facts), []).append(row)
    return [(key, [[row[value] for row in some if value in row] for value in values]) for key, some in found.items()]


def _word(part: Any) -> str:
    return "-" if part is None else f"{part:g}" if isinstance(part, float) else str(part)


def run_study(
    study: Study,
    folder: Path,
    minutes: float | None = None,
    results: Path | None = None,
    after_cell: Callable[[Sequence[Row]], None] | None = None,
) -> Grid:
    """The whole study: cells, results.json and results.csv, figures. The same call again resumes where it ended."""
    from vitreous.display import figures

    study.check()
    grid = Grid(folder, study.about(), minutes, results)
    if after_cell is not None:
        grid.after_cell = lambda: after_cell(grid.rows)
    study.run(grid)
    for name, drawn in study.figures(grid.rows).items():
        figures.save(drawn, grid.results / name)
    return grid
