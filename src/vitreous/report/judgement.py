"""What the numbers amount to: judgements that several sections share."""

from dataclasses import dataclass
from typing import Any

from vitreous.fitting.first import ON_PIXELS
from vitreous.fitting.fitted import Fitted
from vitreous.report.figures import Rows, series
from vitreous.training.run import RunDirectory

FALLEN = 0.03  # share of the validation loss by which it falls in the last third of a run that is still learning
LEARNED = 0.9  # headline above which little is left to learn
LOW_SCORE = 0.6  # below which a model that is still learning counts as barely trained


@dataclass(frozen=True)
class Fall:
    """Of the validation loss, in the last third of training."""

    before: float
    after: float


def is_guessing(result: Fitted[Any], chance: float) -> bool:
    """The interval of its headline reaches down to what chance gives."""
    return result.evaluation.headline.low <= chance


def loses_to(result: Fitted[Any], bar: float | None) -> bool:
    """The interval of its headline reaches down to the bar: logistic regression on pixels, where that was tested."""
    return bar is not None and result.evaluation.headline.low <= bar


def is_of_pixels(result: Fitted[Any]) -> bool:
    """Nothing that was trained was better, so that logistic regression on pixels was kept."""
    return any(one.is_kept and one.name == ON_PIXELS for one in result.candidates)


def still_learning(result: Fitted[Any]) -> Fall | None:
    """How much a model that began with random weights was still gaining when its training ended; None: not clearly."""
    is_done = result.plan.recipe.start is not None or is_of_pixels(result)
    if is_done or result.evaluation.headline.value > LEARNED:
        return None
    return fall(RunDirectory(result.out).rows())


def fall(rows: Rows) -> Fall | None:
    for name in ("val_average/log_loss", "val/log_loss"):
        epochs, values = series(rows, name)
        earlier = [value for epoch, value in zip(epochs, values, strict=True) if epoch <= 2 / 3 * epochs[-1]]
        if earlier:
            found = Fall(min(earlier), values[-1])
            return found if found.after <= (1 - FALLEN) * found.before else None
    return None


def is_barely_trained(result: Fitted[Any], chance: float, bar: float | None) -> bool:
    """What a look inside shows of it is chance more than knowledge."""
    is_low = result.evaluation.headline.value < LOW_SCORE
    return is_guessing(result, chance) or loses_to(result, bar) or (is_low and still_learning(result) is not None)
