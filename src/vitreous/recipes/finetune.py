"""Fine-tuning as in the paper (3.2, B.1.1): a new head of zeros, larger pictures, SGD with momentum. A head made from
the names of the same classes is kept: it knows them before training.

SGD with momentum 0.9, batch 512, cosine decay, no weight decay, gradients clipped at norm 1, 384 px. The learning rate
is chosen on a held-out part of train; then the model is trained on all of it.
"""

from dataclasses import replace
from typing import Literal

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.sources import DataSettings, open_sources
from vitreous.errors import UserError
from vitreous.models import ModelSettings
from vitreous.recipes.detect import for_objects, has_objects
from vitreous.recipes.recipe import Recipe, short_name
from vitreous.recipes.segment import for_pixels, has_masks
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import SGDSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

# Table 4 of the paper: steps and candidate rates; and the share of train held out to choose the rate (B.1.1).
PAPER_TASKS = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    "cifar": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 0.10),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), 0.10),
}
PaperTask = Literal["imagenet", "cifar", "pets", "flowers"]


def finetune(start: str, data: str, picture_px: int | None = None, steps: int | None = None) -> Recipe:
    """Fine-tune any run on any data with the paper's settings, for 10 epochs unless told otherwise.

    Command:  vitreous finetune RUN DATA --training.steps 500 --rates 0.003,0.01,0.03
    Cost:     at 384 instead of 224 px, about 3 times the FLOP per picture
    Score:    paper, Table 5; by task in `paper_finetune`
    Section:  3.2, B.1.1
    """
    trained = Trained.load(start)
    model, by_words = larger(trained.card.model, picture_px), _by_words(trained.card, data)
    training = TrainingSettings(
        epochs=10, steps=steps, batch_size=512, clip=1.0, evaluate_every_epochs=1, log_every_steps=10, workers=2
    )
    recipe = Recipe(
        name=f"finetune-{short_name(start)}-{short_name(data)}",
        data=DataSettings(where=data, val_fraction=0.1),
        model=model,
        start=start,
        start_head=by_words is not None,
        objective=by_words or ClassifySettings(head="linear"),
        normalise=trained.card.preprocessing,
        augmentation=Augmentation(crop=CropSettings(method="random-resized", scale=(0.5, 1.0))),
        optimizer=SGDSettings(lr=0.01, momentum=0.9, weight_decay=0.0),
        schedule=ScheduleSettings(warmup_fraction=0.05, decay="cosine"),
        training=training,
    )
    if has_objects(data):
        return for_objects(recipe, trained.card)
    return for_pixels(recipe, trained.card) if has_masks(data) else recipe


def _by_words(card: Card, data: str) -> ClassifySettings | None:
    """A task whose head was made from the names of these classes; None if it was not, or if the pictures cannot be
    opened: training on them will report why."""
    if not (isinstance(card.task, ClassifySettings) and card.task.head == "cosine"):
        return None
    try:
        classes = {name for source in open_sources(data).values() for name in source.classes}
    except UserError:
        return None
    return card.task if classes == set(card.classes) else None


def paper_finetune(
    start: str, data: str, task: PaperTask = "cifar", picture_px: int = 384, headline: bool = False
) -> Recipe:
    """Fine-tune as in the paper's Table 4: steps and rates by task (imagenet, cifar, pets, flowers), 384 px.

    Command:  vitreous train paper_finetune --start RUN --data DATA --task pets
              for the headline numbers: --task imagenet --headline true (L/16 512 px, H/14 518 px, Polyak averages)
    Cost:     20,000 steps of batch 512 at 384 px for ImageNet; 500 steps for Pets and Flowers
    Score:    paper, Table 5: B/16 from ImageNet-21k: 83.97 % on ImageNet, 98.95 % on CIFAR-10, 94.67 % on Pets
    Section:  4.1, B.1.1
    """
    steps, rates, held_out = PAPER_TASKS[task]
    cell_px = max(Trained.load(start).card.model.cell_px)
    # Whole patches: those of 14 px cover 378 of 384 px; the headline's 512 px become 518.
    side = round(512 / cell_px) * cell_px if headline else picture_px // cell_px * cell_px
    recipe = finetune(start, data, side, steps)
    return replace(
        recipe,
        name=f"paper_finetune-{task}-{short_name(start)}",
        # The labels of ImageNet's test pictures are secret: everybody reports its val pictures.
        data=replace(recipe.data, val_fraction=held_out, test_split="val" if task == "imagenet" else "test"),
        # The paper does not mention warm-up; its released code has 500 steps.
        schedule=ScheduleSettings(warmup_steps=min(500, steps // 5), decay="cosine"),
        average=AverageSettings(kind="polyak", factor=0.9999) if headline else AverageSettings(),
        training=replace(recipe.training, precision="auto"),
        rates=rates,
    )


def larger(model: ModelSettings, picture_px: int | None = None) -> ModelSettings:
    """The same model for pictures of `picture_px`; by default larger by the ratio of 384 to 224, in whole places of its
    coarsest map."""
    if picture_px is not None:
        return replace(model, picture_px=(picture_px, picture_px))
    if not model.finetuning.enlarges:
        return model
    places = zip(model.picture_px, model.coarsest_px, strict=True)
    height, width = (max(1, round(side / px * 12 / 7)) * px for side, px in places)
    return replace(model, picture_px=(height, width))
