"""One file per verb (and `recipes`, which several share). Each has HELP, `add(parser)` and `run(options)`, parses and
prints, and holds no logic.

torch is imported inside `run`, so that every `--help` is quick. A verb whose `TAKES_SETTINGS` is true is also handed
the dotted settings it was given, as text: `run(options, changes)`, and prints its own help (`options.help`).
"""

import argparse

# name -> module, in the order of `vitreous --help`
VERBS = {
    "fit": "fit",
    "report": "report",
    "list": "listing",
    "train": "train",
    "finetune": "finetune",
    "teach": "teach",
    "selftrain": "selftrain",
    "evaluate": "evaluate",
    "inspect": "inspect",
    "verify": "verify",
    "predict": "predict",
    "embed": "embed",
    "index": "index",
    "search": "search",
    "serve": "serve",
    "export": "export",
    "study": "study",
    "convert": "convert",
    "demo": "demo",
}

DEVICES = ("auto", "cpu", "cuda", "mps")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, default="auto", help="where to compute (default: auto)")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="only results, warnings and errors: no progress")


def with_device(changes: dict[str, str], options: argparse.Namespace, name: str = "training.device") -> dict[str, str]:
    """Settings with --device as the dotted name, unless that is given too."""
    return changes if options.device == "auto" else {name: options.device, **changes}
