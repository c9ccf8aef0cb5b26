"""vitreous predict"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain, tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitreous.errors import UserError
from vitreous.terminal import printable
from vitreous.verbs import add_device, add_quiet
from vitreous.verbs.bulk import add_bulk, run_bulk

if TYPE_CHECKING:
    from vitreous.data.images import BadPicture
    from vitreous.prediction.outcomes import Outcome
    from vitreous.prediction.predictor import Predictor
    from vitreous.prediction.records import Records, Wanted

HELP = "Predict what pictures show, with calibrated probabilities."
STDIN_BYTES = 1 << 28  # largest picture on standard input
LINE_BYTES = 1 << 16  # longest path on it
# Formats whose first line may have no zero byte; paths never have one.
PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|P[1-6](\s+\d+)*\s*$")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "start", metavar="MODEL", help="a run, weights, or an exported .onnx file (which needs no torch)"
    )
    parser.add_argument("pictures", nargs="+", metavar="PICTURES", help="files, folders, or - (below)")
    parser.epilog = "- reads the standard input: the bytes of one picture, or paths, one per line."
    parser.add_argument("--format", choices=tuple(FORMATS), default="table", help="(default: table)")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to name (default: 5)")
    parser.add_argument(
        "--coverage", type=float, metavar="P", help="add the set that holds the right class with this probability"
    )
    parser.add_argument(
        "--abstain",
        type=float,
        default=0.0,
        metavar="P",
        help='say "not sure" if the best class is less probable than this',
    )
    parser.add_argument(
        "--classes", metavar="NAMES", help="with CLIP and the like: 'a cat,a dog', or a file with one name per line"
    )
    parser.add_argument(
        "--templates", metavar="T", help="for --classes: 'a photo of a {};a drawing of a {}', a file, or none"
    )
    parser.add_argument("--labelled", metavar="DATA", help="for --classes: pictures of these classes, to calibrate on")
    parser.add_argument("--batch", type=int, metavar="N", help="pictures per batch (default: 16, and 1 for -)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write files there: masks, overlays, polygons, shares; objects, drawn and as CSV, COCO, YOLO; rows",
    )
    parser.add_argument("--score", type=float, metavar="P", help="for objects: report those with at least this score")
    parser.add_argument(
        "--precision", type=float, metavar="P", help="for objects: report as many as keep this share of them right"
    )
    add_bulk(parser, default=None)
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    _check(options)
    if options.engine is None:
        _print(options)
    else:
        _write(options)


def _write(options: argparse.Namespace) -> None:
    """Rows as parquet, of any number of pictures."""
    from vitreous.bulk.work import Predict

    if options.out is None or options.format != "table":
        raise UserError(
            f"--engine {options.engine} writes parquet files: name their folder with --out, and no --format"
        )
    run_bulk(options, Predict(model=options.start, wanted=_wanted(options)))


def _print(options: argparse.Namespace) -> None:
    """Rows as they come."""
    from vitreous.data.images import BadPicture
    from vitreous.prediction.files import files as files_of
    from vitreous.prediction.predictor import Predictor
    from vitreous.prediction.records import records as records_of
    from vitreous.terminal import Bar

    predictor = Predictor.load(options.start, options.device) if options.classes is None else _by_words(options)
    wanted = _wanted(options)
    records = records_of(predictor.reading, wanted)
    from_stdin = options.pictures == ["-"]
    listed = [] if from_stdin else _listed(options.pictures)
    if not (from_stdin or listed):
        raise UserError("there are no pictures to predict")
    files = None if options.out is None else files_of(Path(options.out), predictor.reading, wanted)
    named, read = tee(_from_stdin(sys.stdin.buffer) if from_stdin else listed)
    outcomes = predictor.outcomes(read, options.batch or (1 if from_stdin else 16))
    print_row, finish = FORMATS[options.format](records)
    num, num_bad = 0, 0
    # On a terminal, the rows are progress enough.
    is_silent = options.quiet or from_stdin or sys.stdout.isatty() or not sys.stderr.isatty()
    with Bar("predicting", len(listed), silent=is_silent) as bar:
        for picture, outcome in zip(named, outcomes, strict=True):
            print_row(_record(picture if isinstance(picture, str) else "-", outcome, records))
            if files is not None and not isinstance(outcome, BadPicture):
                files.add(picture, outcome)
            num, num_bad = num + 1, num_bad + isinstance(outcome, BadPicture)
            bar.update(num)
    finish()
    if files is not None:
        files.finish()
    if num_bad == num:
        raise UserError("none of the pictures could be read" if num else "there are no pictures to predict")


def _wanted(options: argparse.Namespace) -> "Wanted":
    from vitreous.prediction.records import Wanted

    return Wanted(
        top=options.top,
        coverage=options.coverage,
        abstain=options.abstain,
        score=options.score,
        precision=options.precision,
    )


def _check(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise UserError(f"--top {options.top}: name at least one class")
    if options.batch is not None and options.batch < 1:
        raise UserError(f"--batch {options.batch}: at least one picture at a time")
    if not 0 <= options.abstain <= 1:
        raise UserError(f"--abstain {options.abstain}: a probability is between 0 and 1")
    for name in ("score", "precision"):
        if getattr(options, name) is not None and not 0 <= getattr(options, name) <= 1:
            raise UserError(f"--{name} {getattr(options, name)}: it is between 0 and 1")
    if options.score is not None and options.precision is not None:
        raise UserError("--score and --precision both say which objects are reported: give one of them")
    if options.classes is None and (options.templates is not None or options.labelled is not None):
        raise UserError("--templates and --labelled are for --classes: give that too")
    if options.classes is not None and options.engine is not None:
        raise UserError(
            "--engine takes a classifier: write one of these names with `vitreous convert MODEL OUT --classes NAMES`, "
            "and predict with that"
        )
    if options.classes is not None and options.coverage is not None and options.labelled is None:
        raise UserError(
            "--coverage: prediction sets are fitted to labelled pictures: give some of these classes with --labelled"
        )
    if "-" in options.pictures and len(options.pictures) > 1:
        raise UserError("- cannot be combined with other pictures: it reads standard input")


def _by_words(options: argparse.Namespace) -> "Predictor":
    """The predictor of a model with a text tower."""
    from vitreous.jobs.matching import calibrated
    from vitreous.prediction.naming import parse_classes, parse_templates
    from vitreous.prediction.torch_predictor import TorchPredictor
    from vitreous.prediction.zero_shot import zero_shot
    from vitreous.training.devices import World
    from vitreous.weights.trained import Trained

    templates = parse_templates(options.templates)
    classifier = zero_shot(Trained.load(options.start), parse_classes(options.classes), templates)
    if options.labelled is not None:
        classifier = calibrated(classifier, options.labelled, World.join(options.device))
    return TorchPredictor(classifier, options.device)


def _listed(words: list[str]) -> list[str]:
    from vitreous.prediction.pictures import picture_files

    found: list[str] = []
    for word in words:
        if "://" in word or word.lower().endswith((".tar", ".parquet", ".txt")):
            raise UserError(
                f"{word}: predictions for tar, parquet, lists and URLs go to a folder: add --engine local --out DIR"
            )
        found += [str(path) for path in picture_files(Path(word))] if Path(word).is_dir() else [word]
    return found


def _from_stdin(stream: IO[bytes]) -> Iterator[str | bytes]:
    """Paths, as they come; or the bytes of one picture, recognised by their beginning."""
    first = stream.readline(LINE_BYTES)
    if b"\0" not in first and not PICTURE.match(first):
        lines = (line.decode(errors="surrogateescape").rstrip("\r\n") for line in chain([first], stream))
        yield from (line for line in lines if line.strip())
        return
    picture = first + stream.read(STDIN_BYTES)
    if len(picture) > STDIN_BYTES:
        raise UserError(f"-: the picture on standard input has over {STDIN_BYTES >> 20} MB")
    yield picture


def _record(path: str, outcome: "Outcome | BadPicture", records: "Records") -> dict[str, Any]:
    """The record of a picture, the same in every format."""
    from vitreous.data.images import BadPicture

    if isinstance(outcome, BadPicture):
        return {"picture": path, "error": str(outcome)}
    return {"picture": path, **records.record(outcome)}


# ---- formats: each prints the header, and returns a function that prints a row and one that prints the end

Printers = tuple[Callable[[dict[str, Any]], None], Callable[[], None]]


def _nothing() -> None:
    pass


def _json(records: "Records") -> Printers:
    """One list, at the end; for rows as they come, there is jsonl."""
    written: list[dict[str, Any]] = []
    return written.append, lambda: print(json.dumps(written, indent=2))


def _json_lines(records: "Records") -> Printers:
    return lambda record: print(json.dumps(record), flush=True), _nothing


def _csv(records: "Records") -> Printers:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture", *records.columns, "error"])

    def print_row(record: dict[str, Any]) -> None:
        cells = [""] * len(records.columns) if "error" in record else records.cells(record)
        row = [record["picture"], *cells, record.get("error", "")]
        writer.writerow([part.encode(errors="replace").decode() if isinstance(part, str) else part for part in row])
        sys.stdout.flush()

    return print_row, _nothing


def _table(records: "Records") -> Printers:
    def print_row(record: dict[str, Any]) -> None:
        picture = record["picture"]
        if "error" in record:
            print(f"{'-':{records.width}}  {printable(picture)}: {printable(record['error'])}", flush=True)
        else:
            print(printable(records.line(picture, record)), flush=True)

    return print_row, _nothing


FORMATS = {"table": _table, "json": _json, "jsonl": _json_lines, "csv": _csv}
