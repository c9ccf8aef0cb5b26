"""The result first: how good the model is, what was chosen, what to be careful about."""

from collections.abc import Iterator

from vitreous.fitting.fit import FitResult
from vitreous.report import opening
from vitreous.report.html import Content, Html, tag
from vitreous.report.judgement import still_learning
from vitreous.report.kinds import kind_of
from vitreous.report.words import counted


def headline(result: FitResult) -> Html:
    return opening.headline(result.data.where, result.evaluation.headline.value, kind_of(result).lead(result))


def account(result: FitResult) -> Html:
    return opening.account(_cautions(result), result.plan.choices)


# ---- What to be careful about


def _cautions(result: FitResult) -> Iterator[tuple[Content, ...]]:
    kind = kind_of(result)
    yield from kind.cautions(result)
    yield from _about_scoring(result)
    yield from _about_training(result)
    yield from _about_data(result)
    yield from kind.cautions_of_confidence(result)
    yield (
        "Other pictures.",
        "All numbers hold for pictures like the test pictures: other cameras, places or years may be harder.",
    )


def _about_scoring(result: FitResult) -> Iterator[tuple[Content, ...]]:
    if result.on_a_part:
        yield (
            "Scored on a part.",
            f"All test numbers are measured{result.on_a_part}, drawn at random before any was read: the time was too "
            "short for all. To score them all: ",
            tag.code(f"vitreous evaluate {result.out}"),
            ".",
        )


def _about_training(result: FitResult) -> Iterator[tuple[Content, ...]]:
    if (loss := still_learning(result)) is not None:
        yield (
            "Still learning when it stopped.",
            "It was trained from scratch, and its validation loss was still falling "
            f"({loss.before:.2f} to {loss.after:.2f} in the last third of training): more training would likely raise "
            f"its {result.evaluation.headline_name}. Try more time (",
            tag.code("--minutes"),
            "), more pictures, or trained weights to start from (",
            tag.code("--from"),
            ").",
        )


def _about_data(result: FitResult) -> Iterator[tuple[Content, ...]]:
    data = result.data
    if data.left_out:
        num = len(data.left_out)
        yield (
            "Leaks.",
            f"{counted(num, 'training picture')} also {'stands' if num == 1 else 'stand'} in the validation or test "
            "part; left out of training. The test part is as it was.",
        )
    others = len([leak for leak in data.leaks if leak.part != "train"])
    if others:
        yield (
            "Validation and test overlap.",
            f"{counted(others, 'picture')} in both: calibration may look a little better than it is.",
        )
    if data.num_two_labels:
        yield (
            "Labels that contradict.",
            f"{counted(data.num_two_labels, 'picture')} under two classes: no model can be right about both.",
        )
    unreadable = sum(len(part.unreadable) for part in data.parts)
    if unreadable:
        yield "Unreadable files.", f"{counted(unreadable, 'file')} skipped; named below."
