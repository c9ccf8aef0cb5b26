"""What was decided about a classifier, and why."""

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.display.words import counted
from vitreous.fitting.budget import Budget
from vitreous.fitting.choices import Choice, length, reason_for_length, scored_choice, start_choice
from vitreous.fitting.drafts import Problem
from vitreous.fitting.transfer import Found
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.recipes.recipe import Recipe

BALANCE = ("data.order.balance", "data.balance")  # the names it may be given by
IMBALANCE = 3.0  # ratio of the largest class to the smallest above which `auto` balances
STRONG_EPOCHS = 60  # from which augmentation is strong: in fewer passes it would slow learning more than help


def class_choices(recipe: Recipe, problem: Problem, start: Found, kept: Budget | None) -> tuple[Choice, ...]:
    report, hardware, wishes, training = problem.report, problem.hardware, problem.wishes, recipe.training

    def choice(name: str, value: str, reason: str, *given: str) -> Choice:
        return Choice(name=name, value=value, reason="as you asked" if wishes.gives(*given) else reason)

    return (
        *_task(report),
        choice("hardware", hardware.name, "what this machine has", "training.device"),
        start_choice(start),
        choice("model", recipe.model.describe(), _why_model(recipe, hardware, kept), "model"),
        choice("resolution", *_resolution(recipe, report), "model.picture_px"),
        choice(
            "length",
            length(recipe, report),
            reason_for_length(report, wishes, kept),
            "training.epochs",
            "training.steps",
        ),
        choice(
            "batch",
            counted(training.batch_size, "picture"),
            "the largest with eight steps per epoch, up to what learns well",
            "training.batch_size",
        ),
        choice(
            "optimizer",
            settings.kind(type(recipe.optimizer)),
            "gentle on the early layers of trained weights"
            if recipe.start
            else "learns fastest from scratch on small data",
            "optimizer",
        ),
        choice(
            "augmentation",
            "strong" if recipe.augmentation.mix.is_on or recipe.augmentation.warp.ops else "light",
            f"{STRONG_EPOCHS} passes or more would overfit"
            if recipe.augmentation.mix.is_on
            else f"under {STRONG_EPOCHS} passes; strong augmentation would slow learning",
            "augmentation",
        ),
        choice("balance", *_balance_words(recipe, report, wishes), *BALANCE, "objective.class_weights"),
        *scored_choice(report, kept),
    )


def _task(report: DataReport) -> tuple[Choice, ...]:
    """Only if it is not the usual one."""
    if report.task != "label":
        return ()
    why = "a picture may have any number of labels: each is predicted independently (sigmoid loss)"
    return (Choice(name="task", value="several labels per picture", reason=why),)


def _resolution(recipe: Recipe, report: DataReport) -> tuple[str, str]:
    (height, width), side = recipe.model.picture_px, min(report.heights[1], report.widths[1])
    why = f"the shorter side of the pictures is {side} px"
    if side > max(width, height):
        why += "; more would be too slow here"
    elif side < min(width, height) and recipe.start:
        why += "; the encoder was trained on larger ones"
    return f"{width} x {height} px", why + (
        f"; train is kept at {recipe.data.shrink_px} px" if recipe.data.shrink_px else ""
    )


def _why_model(recipe: Recipe, hardware: Hardware, kept: Budget | None) -> str:
    if recipe.start:
        return "the one that the starting weights are for"
    if kept is None:
        return (
            "learns small data sets in minutes on a CPU"
            if hardware.kind == "cpu"
            else "the size that does well on small data sets"
        )
    return "the largest of those tried that can see the data often enough in this time"


def _balance_words(recipe: Recipe, report: DataReport, wishes: Wishes) -> tuple[str, str]:
    if report.task != "classify":
        return balance_of(recipe), "a picture with several labels counts for all of them"
    way = balance_of(recipe)
    sizes = report.class_sizes
    if wishes.balance != "auto" or wishes.gives(*BALANCE, "objective.class_weights"):
        return way, f"as you asked; {sizes}"
    if recipe.data.order.balance:
        return way, f"{sizes}: over {IMBALANCE:g} to 1, so every class is shown equally often"
    return way, sizes if report.imbalance == 1 else f"{sizes}: at most {IMBALANCE:g} to 1"


def balance_of(recipe: Recipe) -> str:
    """How the recipe handles classes of unequal size, in words."""
    ways = {"sampling": recipe.data.order.balance, "weights": bool(getattr(recipe.objective, "class_weights", ()))}
    return " and ".join(way for way, is_taken in ways.items() if is_taken) or "none"
