"""What the numbers amount to: judgements that several sections share."""

from dataclasses import dataclass

from vitreous.evaluation.full import ClassEvaluation
from vitreous.evaluation.many import ManyEvaluation
from vitreous.evaluation.metrics import Estimate, wilson
from vitreous.fitting.fit import FitResult
from vitreous.fitting.keep import ON_PIXELS
from vitreous.report.figures import Rows, series
from vitreous.training.run import RunDirectory

FALLEN = 0.03  # share of the validation loss by which it falls in the last third of a run that is still learning
LEARNED = 0.9  # headline above which little is left to learn
LOW_ACCURACY = 0.6  # below which a model that is still learning counts as barely trained


@dataclass(frozen=True)
class Fall:
    """Of the validation loss, in the last third of training."""

    before: float
    after: float


def most_frequent(result: FitResult) -> tuple[str, Estimate]:
    """The most frequent class of the training pictures; and how often it is right on test."""
    counts = result.data.train_counts
    place = counts.index(max(counts))
    return result.data.classes[place], wilson(int((result.test.labels == place).sum()), len(result.test))


def of_classes(result: FitResult) -> ClassEvaluation:
    """For what is about one class per picture."""
    assert isinstance(result.evaluation, ClassEvaluation)
    return result.evaluation


def of_labels(result: FitResult) -> ManyEvaluation:
    """For what is about several labels per picture."""
    assert isinstance(result.evaluation, ManyEvaluation)
    return result.evaluation


def chance(result: FitResult) -> float:
    """The headline of whoever does not look: of classes the most frequent one, of labels how frequent they are."""
    if isinstance(result.evaluation, ClassEvaluation):
        return most_frequent(result)[1].value
    scores = result.evaluation.scores
    shares = [one.pictures / scores.pictures for one in scores.per_class if one.pictures]
    return sum(shares) / len(shares)


def is_guessing(result: FitResult) -> bool:
    """The interval of its headline reaches down to what chance gives."""
    return result.evaluation.headline.low <= chance(result)


def loses_to_pixels(result: FitResult) -> bool:
    """The interval of its headline reaches down to that of logistic regression on pixels."""
    return result.baseline is not None and result.evaluation.headline.low <= result.baseline.accuracy


def is_of_pixels(result: FitResult) -> bool:
    """Nothing that was trained was better, so that logistic regression on pixels was kept."""
    return any(one.is_kept and one.name == ON_PIXELS for one in result.candidates)


def still_learning(result: FitResult) -> Fall | None:
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


def is_barely_trained(result: FitResult) -> bool:
    """What a look inside shows of it is chance more than knowledge."""
    is_low = result.evaluation.headline.value < LOW_ACCURACY
    return is_guessing(result) or loses_to_pixels(result) or (is_low and still_learning(result) is not None)
