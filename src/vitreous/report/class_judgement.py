"""What the numbers of classifiers amount to: judgements that several sections share."""

from vitreous.evaluation.full import ClassEvaluation
from vitreous.evaluation.many import ManyEvaluation
from vitreous.evaluation.metrics import Estimate, wilson
from vitreous.fitting.class_fit import ClassAccount
from vitreous.fitting.fitted import Fitted

ClassFitted = Fitted[ClassAccount]


def most_frequent(result: ClassFitted) -> tuple[str, Estimate]:
    """The most frequent class of the training pictures; and how often it is right on test."""
    counts = result.data.train_counts
    place = counts.index(max(counts))
    return result.data.classes[place], wilson(
        int((result.account.test.labels == place).sum()), len(result.account.test)
    )


def of_classes(result: ClassFitted) -> ClassEvaluation:
    """For what is about one class per picture."""
    assert isinstance(result.evaluation, ClassEvaluation)
    return result.evaluation


def of_labels(result: ClassFitted) -> ManyEvaluation:
    """For what is about several labels per picture."""
    assert isinstance(result.evaluation, ManyEvaluation)
    return result.evaluation


def chance_of_classes(result: ClassFitted) -> float:
    """Of whoever does not look, and always says the most frequent one."""
    return most_frequent(result)[1].value


def chance_of_labels(result: ClassFitted) -> float:
    """Of whoever does not look: how frequent they are."""
    scores = of_labels(result).scores
    shares = [one.pictures / scores.pictures for one in scores.per_class if one.pictures]
    return sum(shares) / len(shares)


def pixels_score(result: ClassFitted) -> float | None:
    """Of logistic regression on pixels; None: it was not tested."""
    return None if result.account.baseline is None else result.account.baseline.score
