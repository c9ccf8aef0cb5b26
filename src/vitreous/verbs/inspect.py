"""vitreous inspect"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitreous.data.images import Picture
    from vitreous.inspection.findings import Look, Method
    from vitreous.inspection.receptive import ReceptiveFields
    from vitreous.models.layout import Token
    from vitreous.tasks.base import Task
    from vitreous.weights.card import Card
    from vitreous.weights.trained import Trained

    Readers = list[tuple[str, Callable[[], Picture]]]  # of each picture: its name, and how to read it

HELP = "Look inside a run: attention, filters, positions and receptive fields, as figures and numbers."
METHOD_HELP = (
    "rollout: all layers, each averaged with the identity (default); product: all layers, plain; raw: the weights of "
    "one layer (default where --layer or --head is given, and for models that look inside windows)"
)
TOKEN_HELP = (
    "the query: a prefix token's number (0: class), or a patch of the layer as ROW,COLUMN (default: what is pooled)"
)
COMPARE_HELP = "other runs or weights whose receptive fields are drawn beside this one's, for the same pictures"
NUM_SHOWN = 9  # pictures in a figure


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="RUN", help="a finished run, or any other weights")
    parser.add_argument(
        "given", nargs="*", metavar="PICTURES", help="files or folders (default: those of the run's test part)"
    )
    parser.add_argument("--out", metavar="DIR", help="where the figures go (default: runs/inspect- and the run's name)")
    parser.add_argument("--method", choices=("rollout", "product", "raw"), help=METHOD_HELP)
    parser.add_argument(
        "--layer", type=int, metavar="L", help="raw: the layer (1 is the first, -1 the last, which is the default)"
    )
    parser.add_argument("--head", type=int, metavar="H", help="raw: the head (1 is the first; default: their mean)")
    parser.add_argument("--token", metavar="T", help=TOKEN_HELP)
    parser.add_argument("--compare", nargs="+", default=[], metavar="RUN", help=COMPARE_HELP)
    parser.add_argument("--pictures", type=int, default=128, metavar="N", help="read at most this many (default: 128)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    import numpy as np

    from vitreous.display.figures import save
    from vitreous.inspection.figures import figures
    from vitreous.inspection.findings import look_inside
    from vitreous.inspection.receptive import widths
    from vitreous.terminal import quietly
    from vitreous.training.devices import World
    from vitreous.weights.trained import Trained

    trained, device = Trained.load(options.start), World.join(options.device).device
    task = trained.task().to(device) if trained.card.predicts else None
    encoder = trained.encoder().eval().to(device) if task is None else task.encoder
    look = _look(options)
    if look is not None:
        look.check(encoder)  # an error, if any, comes before anything is read
    with quietly(options.quiet):
        readers = _readers(options)
        names, pictures = _read(readers, options.pictures, trained)
    images = trained.card.preprocessing.normalised(pictures)
    found = look_inside(encoder, images, look, num_shown=NUM_SHOWN, num=options.pictures)
    captions = names[:NUM_SHOWN]
    if task is not None:
        captions = _with_predictions(captions, task, images[:NUM_SHOWN].to(device), trained.card)
    out = Path(options.out or Path("runs") / f"inspect-{Path(options.start).name}")
    shown = list(pictures[:NUM_SHOWN].permute(0, 2, 3, 1).numpy())
    drawn = figures(found, shown, captions)
    if options.compare:
        drawn["compared"] = _compared(options, trained, found.receptive, readers)
    for name, one in drawn.items():
        save(one, out / name)
        print(f"{out / name}.png and .svg")
    if not isinstance(found.receptive, str):
        print(f"Half of what a map depends on lies within {widths(found.receptive.fields)}")
    for why in sorted({each for each in (found.attention, found.receptive) if isinstance(each, str)}):
        print(f"Not drawn: {why}")
    np.savez_compressed(out / "numbers.npz", names=np.array(names), **found.arrays())
    print(f"{out / 'numbers.npz'}  ({', '.join(found.arrays())})")


def _with_predictions(names: list[str], task: "Task", images: "Tensor", card: "Card") -> list[str]:
    import torch

    from vitreous.prediction.outcomes import outcomes
    from vitreous.prediction.reading import Reading
    from vitreous.prediction.torch_predictor import as_arrays

    with torch.no_grad():
        prediction = as_arrays(task.predict(images))
    size = (images.shape[-2], images.shape[-1])
    said = outcomes(prediction, Reading.of(card), [size] * len(names))
    return [f"{name} \N{RIGHTWARDS ARROW} {outcome.words}" for name, outcome in zip(names, said, strict=True)]


def _compared(
    options: argparse.Namespace, trained: "Trained", own: "ReceptiveFields | str", readers: "Readers"
) -> "Figure":
    """The receptive fields of this model and of others for the same pictures, each in its own preprocessing."""
    from vitreous.inspection.findings import or_why
    from vitreous.inspection.receptive import NUM_PICTURES, receptive_fields
    from vitreous.inspection.receptive_figures import receptive_figure
    from vitreous.terminal import quietly
    from vitreous.weights.trained import Trained

    fields = {_titled(options.start, trained): own}
    for start in options.compare:
        other = Trained.load(start)
        with quietly(options.quiet):
            _, pictures = _read(readers, min(options.pictures, NUM_PICTURES), other)
        encoder, images = other.encoder().eval(), other.card.preprocessing.normalised(pictures)
        fields[_titled(start, other)] = or_why(partial(receptive_fields, encoder, images))
    return receptive_figure(fields)


def _titled(start: str, trained: "Trained") -> str:
    return f"{trained.card.model.name} ({Path(start).name})"


def _look(options: argparse.Namespace) -> "Look | None":
    """What was asked for; None: nothing, so everything the model has is shown."""
    from vitreous.inspection.findings import Look

    if (options.token, options.method, options.layer, options.head) == (None, None, None, None):
        return None
    asks_raw = options.layer is not None or options.head is not None
    if asks_raw and options.method in ("rollout", "product"):
        raise UserError(f"--method {options.method} goes through all layers and heads: --layer and --head are for raw")
    method: Method | None = options.method or ("raw" if asks_raw else None)
    layer = -1 if options.layer is None else options.layer
    return Look(token=_token(options.token), method=method, layer=layer, head=options.head)


def _token(word: str | None) -> "Token":
    if word is None:
        return None
    try:
        numbers = tuple(int(part) for part in word.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    raise UserError(f"--token {word}: give a prefix token's number (0: class), or a patch as ROW,COLUMN")


# ---- Pictures


def _readers(options: argparse.Namespace) -> "Readers":
    """The given pictures, or those of the run's own test part (else of validation), named by their classes."""
    from vitreous.data.images import read_picture
    from vitreous.jobs.data import AskedData

    if options.given:
        paths = [path for where in options.given for path in _files(Path(where).expanduser())]
        return [(path.name, partial(read_picture, path)) for path in paths]
    parts = AskedData.find(options.start).splits()
    source = next(part for part in (parts.test, parts.val, parts.train) if part is not None)
    return [(source.described(index), partial(source.read, index)) for index in range(len(source))]


def _files(path: Path) -> list[Path]:
    from vitreous.prediction.pictures import picture_files

    if not path.exists():
        raise UserError(f"{path}: no such picture or folder")
    return picture_files(path) if path.is_dir() else [path]


def _read(readers: "Readers", num: int, trained: "Trained") -> "tuple[list[str], Tensor]":
    """At most `num` pictures, evenly spread over all, as the model sees them: (P, 3, H, W) uint8.

    The first, which the figures show, are evenly spread over these, so that they are not all of one class.
    """
    import torch

    from vitreous.data.images import BadPicture
    from vitreous.terminal import track

    if num < 1:
        raise UserError(f"--pictures {num}: at least 1 is needed")
    chosen = _spread(list(range(len(readers))), num)
    shown = _spread(chosen, NUM_SHOWN)
    names, pictures = [], []
    for place in track([*shown, *sorted(set(chosen) - set(shown))], "reading pictures"):
        name, read = readers[place]
        try:
            pictures.append(trained.card.preprocessing.resized(read()))
            names.append(name)
        except BadPicture as error:
            print(f"{name}: skipped, {error}", file=sys.stderr)
    if not pictures:
        raise UserError("none of the given pictures could be read")
    return names, torch.stack(pictures)


def _spread(items: list[int], num: int) -> list[int]:
    """`num` of them, from the first to the last, or all if there are no more."""
    if len(items) <= num:
        return items
    return [items[round(number * (len(items) - 1) / max(num - 1, 1))] for number in range(num)]
