"""Recipe: everything that decides a result, in one object."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from vitreous import settings
from vitreous.data.augmentation import Augmentation
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.data.views import ViewSettings
from vitreous.models import ModelSettings
from vitreous.storage import atomic
from vitreous.tasks import ObjectiveSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import OptimizerSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights import version1

FILES = (".csv", ".tsv", ".parquet", ".tar", ".json", ".yaml", ".yml", ".safetensors", ".npz", ".pt", ".pth", ".bin")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    FORMAT = 2  # of recipe.json

    name: str  # the run directory is named after it
    data: DataSettings
    model: ModelSettings
    start: str | None = None  # the run or folder of weights whose encoder training starts from
    start_head: bool = False  # also start from its head, or text tower, which must be for the same task and classes
    teacher: str | None = None  # the run or folder of weights to learn from: a classifier, or a tokeniser
    objective: ObjectiveSettings
    normalise: Preprocessing = field(default_factory=Preprocessing)
    augmentation: Augmentation = field(default_factory=Augmentation)
    more_views: tuple[ViewSettings, ...] = ()  # of every picture, in addition to the one that the augmentation makes
    optimizer: OptimizerSettings
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    average: AverageSettings = field(default_factory=AverageSettings)
    training: TrainingSettings
    rates: tuple[float, ...] = ()  # to try, scored on the held-out part; the best then trains on all of train

    @property
    def preprocessing(self) -> Preprocessing:
        """The model's picture size decides."""
        return replace(self.normalise, size_px=self.model.picture_px)

    def located(self) -> "Recipe":
        """As stored in a run: its data can be found from any folder."""
        return replace(self, data=self.data.located())

    def in_order_of(self, other: "Recipe") -> "Recipe":
        """With the other's version of the order of samples: a run keeps the one that it began with."""
        order = replace(self.data.order, version=other.data.order.version)
        return replace(self, data=replace(self.data, order=order))

    def for_pictures(self, num: int) -> "Recipe":
        """With a smaller batch if these pictures do not fill one: recipes are made for sets of thousands."""
        if self.training.batch_size <= num:
            return self
        return replace(self, training=replace(self.training, batch_size=batch_for(num, self.training.batch_size)))


def read_recipe(path: Path) -> Recipe:
    """The recipe of a run, also of version 1."""
    return settings.from_json(Recipe, version1.recipe(atomic.read_json(path)), where=str(path))


def batch_for(pictures: int, most: int) -> int:
    """`most`, halved until an epoch has at least eight steps."""
    while most > max(1, pictures // 8):
        most //= 2
    return most


def short_name(where: str) -> str:
    """For data or weights in the name of a run: the last part of a path, or a name without its colon. A folder of runs
    is not called like the table or the file of weights that it was made from."""
    last = where.rstrip("/").rsplit("/", maxsplit=1)[-1].replace(":", "_")
    return Path(last).stem if Path(last).suffix.lower() in FILES else last
