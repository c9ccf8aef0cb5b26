"""Drafts of a detector for some data on some machine."""

from dataclasses import replace
from functools import cache
from typing import ClassVar, Literal

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.display.words import counted
from vitreous.fitting.budget import FIGURES_S, Pace, pace_of
from vitreous.fitting.choices import Choice
from vitreous.fitting.placed_drafts import LARGEST, PlacedDrafts
from vitreous.fitting.transfer import Start
from vitreous.fitting.wishes import DEFAULT_S
from vitreous.models import ModelSettings
from vitreous.models.flops import flops
from vitreous.models.shapes import shapes_only
from vitreous.recipes.detect import QUICK
from vitreous.recipes.recipe import Recipe
from vitreous.tasks import ObjectiveSettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import LossSettings
from vitreous.training.optim import AdamWSettings, OptimizerSettings

# Queries: some to spare, as each finds at most one object; and enough to choose from even if pictures have few objects.
QUERIES_PER_OBJECT, LEAST_QUERIES, MOST_QUERIES = 2, 30, 300
CENTRES, LEAST_PEAKS = "centres", 100  # which makes every place a query
RATES = {"cpu": 1e-3, "cuda": 7e-4}  # lower for the wider decoder
ENLARGED_PX = 256  # picture side up to which the map of a plain ViT is enlarged: above, it is fine enough
SIZES = {"cpu": (128, 4, 256), "cuda": (256, 8, 1024)}  # width, heads, width of the MLP

# For the first model, and on a CPU for the training that continues it.
FIRST_SIDES = (96, 128, 160, 192, 224, 256, 320, 384, 448, 512)  # as in `placed_drafts`
FINE_PX = 48  # side of the smaller objects on the model's input: larger pictures show little more
LOOKING = {"cpu": 0.35, "cuda": 0.1}  # share of the time for the feature maps of training pictures
ENOUGH_SEEN = 500  # pictures: above, larger ones help a head more than further ones
LEARNING = {"cpu": 0.25, "cuda": 0.1}  # share of the time for its head, if enough remains for training
ENOUGH_TRAINED = 3.0  # least epochs of training that are worth their time; with fewer, the head gets it
JUDGED = 2  # passes over the validation part for the first model alone, with some time to spare


class BoxDrafts(PlacedDrafts):
    crop = "letterbox"
    augmentation = Augmentation(
        crop=CropSettings(method="zoom", zoom=(0.7, 1.6)),
        colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2),
    )
    enough_epochs = 20
    usual_seen: ClassVar = {"cpu": 16_000, "cuda": 150_000}
    val_passes = 3  # what the kept weights predict calibrates them too
    scoring_s = judging_s = 0.01  # matching, and drawing pictures again

    def objective(self, model: ModelSettings) -> ObjectiveSettings:
        """On a GPU, few layers and boxes proposed by the encoder: the detector has to learn in minutes."""
        if self.is_by_centres:
            return self.centres(model)
        width, heads, mlp_width = SIZES[self.hardware.kind]
        return replace(
            QUICK,
            queries=self._queries(),
            width=width,
            heads=heads,
            mlp_width=mlp_width,
            encoder_depth=1,
            decoder_depth=3,
            levels=3,
            finest=_finest(model),
        )

    def centres(self, model: ModelSettings) -> DetectSettings:
        """No attention: every place of the picture learns from every object near it."""
        return DetectSettings(
            decoder="centres",
            queries=max(self._queries(), LEAST_PEAKS),
            width=128,
            heads=4,
            encoder_depth=2,
            levels=3,
            finest=_finest(model),
            weights=LossSettings(classes=1.0, l1=1.0, giou=2.0),
        )

    def _queries(self) -> int:
        most = max((part.boxes.most for part in self.report.parts if part.boxes is not None), default=0)
        return min(max(QUERIES_PER_OBJECT * most, LEAST_QUERIES), MOST_QUERIES)

    @property
    def is_by_centres(self) -> bool:
        """On a CPU attention learns too slowly."""
        usual = CENTRES if self.hardware.kind == "cpu" else "deformable"
        return self.wishes.changes.get("objective.decoder", usual) == CENTRES

    def sizes(self, model: ModelSettings, start: Start | None) -> list[tuple[int, int]]:
        """That of the first model, if training continues it."""
        if start is None or not self.is_by_centres:
            return super().sizes(model, start)
        return [self.first_size(model, start)]

    @property
    def why_this_size(self) -> str:
        if not self.is_by_centres:
            return super().why_this_size
        return f"smaller objects should measure {FINE_PX} px, as far as time allows"

    def first_size(self, model: ModelSettings, start: Start) -> tuple[int, int]:
        """Large enough for the smaller objects, if time allows."""
        train = self.report.parts[0].boxes
        wanted = min(LARGEST * self.own_side, FINE_PX / max(train.side if train is not None else 0.0, 0.01))
        sides = [side for side in FIRST_SIDES if side <= wanted] or FIRST_SIDES[:1]
        sizes = [self.of_side(side, model) for side in sides]
        affordable = [size for size in sizes if self._is_affordable(_picture_s(start, model, size))]
        return (affordable or sizes[:1])[-1]

    def _is_affordable(self, picture_s: float) -> bool:
        """Whether there is time to see the training pictures, to learn from them, and for what comes after."""
        kind, total_s = self.hardware.kind, self._total_s
        looking_s = picture_s * min(self.report.num_train, ENOUGH_SEEN)
        needs_s = looking_s + LEARNING[kind] * total_s + self._after_s(picture_s)
        return looking_s <= LOOKING[kind] * total_s and needs_s <= total_s

    @property
    def _total_s(self) -> float:
        return self.wishes.budget_s or DEFAULT_S

    def first(self, draft: Recipe, start: Start) -> Recipe:
        """The recipe of the first model. `draft`: what will be trained after it."""
        model = draft.model
        if not self.wishes.gives("model.picture_px"):
            model = replace(model, picture_px=self.first_size(model, start))
        objective = draft.objective if self.is_by_centres else self.centres(model)
        return replace(draft, model=model, objective=objective)

    def looking_s(self, left_s: float) -> float:
        """The time to see training pictures for the first model."""
        return LOOKING[self.hardware.kind] * left_s

    def learning_s(self, recipe: Recipe, picture_s: float, left_s: float) -> float:
        """The time for its head. `picture_s`: how long each of these pictures took; `left_s`: what is left then."""
        learning_s, rest_s = LEARNING[self.hardware.kind] * self._total_s, left_s - self._after_s(picture_s)
        epoch_s = pace_of(recipe, picture_s).step_s * self.report.num_train / recipe.training.batch_size
        is_all = rest_s - learning_s < ENOUGH_TRAINED * epoch_s and not self.wishes.gives_a_length
        return max(rest_s, learning_s) if is_all else learning_s

    def _after_s(self, picture_s: float) -> float:
        """The time needed after a first model that is kept as it is."""
        return 2 * FIGURES_S + picture_s * (JUDGED * self.report.size("val") + self.report.size("test"))

    def foreseen(self, recipe: Recipe, start: Start) -> Pace | None:
        return pace_of(recipe, _picture_s(start, recipe.model, recipe.model.picture_px)) if self.is_by_centres else None

    def optimizer(self, start: Start | None) -> OptimizerSettings:
        lr = RATES[self.hardware.kind]
        return AdamWSettings(lr=lr if start is None else 0.7 * lr, weight_decay=0.05, layer_decay=0.8)

    def own_choices(self, recipe: Recipe) -> tuple[Choice, Choice]:
        num, most = len(self.report.classes), max(part.boxes.most for part in self.report.parts if part.boxes)
        described = f"{getattr(recipe.objective, 'decoder', '')}, {getattr(recipe.objective, 'queries', 0)} queries"
        return (
            self.choice("task", "detection", f"the pictures have boxes of {counted(num, 'class', 'classes')}"),
            self.choice("decoder", described, f"at most {most} objects in a picture", "objective"),
        )


def _finest(model: ModelSettings) -> Literal[1, 2]:
    return 2 if max(model.picture_px) <= ENLARGED_PX else 1


def _picture_s(start: Start, model: ModelSettings, picture_px: tuple[int, int]) -> float:
    """A pass through the encoder at this size, by its FLOPs: those of attention grow with the square of the area."""
    return start.picture_s * _flops(model, picture_px) / _flops(model, start.picture_px)


@cache
def _flops(model: ModelSettings, picture_px: tuple[int, int]) -> int:
    with shapes_only():
        return flops(replace(model, picture_px=picture_px).build())
