"""vitreous evaluate"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.display.words import percent
from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet

if TYPE_CHECKING:
    from vitreous.jobs.evaluate import Assessment

HELP = "Measure a model: its scores, calibration, prediction sets and probes, each with an interval."


TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "How to read other data is set as for training, such as --data.layout.label_column breed."
    parser.add_argument("start", nargs="?", metavar="RUN", help="a finished run, or any other weights")
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="other data with the same classes; any classes for --probe"
    )
    parser.add_argument("--split", choices=("train", "val", "test"), default="test", help="which part (default: test)")
    parser.add_argument("--probe", metavar="NAMES", help="measure the frozen features: knn,linear,fewshot")
    parser.add_argument(
        "--coverage", type=float, nargs="+", metavar="C", help="coverage of prediction sets (default: 0.9 0.95 0.99)"
    )
    parser.add_argument("--labels", metavar="FILE", help="JSON: a list of right labels for each picture (ReaL)")
    parser.add_argument(
        "--map", metavar="FILE", help="JSON: the model's classes for each class of the data (ObjectNet)"
    )
    parser.add_argument(
        "--zero-shot",
        action="store_true",
        help="with CLIP and the like: classify by the names of the data's classes alone",
    )
    parser.add_argument(
        "--templates", metavar="T", help="for --zero-shot: 'a photo of a {};a drawing of a {}', a file, or none"
    )
    parser.add_argument("--figures", metavar="DIR", help="save the figures there")
    add_device(parser)
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    if options.help:
        options.parser.print_help()
        return
    if options.start is None:
        raise UserError("evaluate needs a model: vitreous evaluate RUN")
    for name in changes:
        if not name.startswith("data."):
            options.parser.refuse(f"--{name}")
    if options.templates is not None and not options.zero_shot:
        raise UserError("--templates are for --zero-shot: give both")
    from vitreous.evaluation.conformal import COVERAGES
    from vitreous.jobs.evaluate import evaluate
    from vitreous.prediction.naming import parse_templates
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        found = evaluate(
            options.start,
            options.data,
            options.split,
            changes=changes,
            device=options.device,
            coverages=tuple(options.coverage or COVERAGES),
            probes=tuple(options.probe.split(",")) if options.probe else (),
            label_sets=options.labels,
            mapping=options.map,
            templates=parse_templates(options.templates) if options.zero_shot else None,
        )
    if options.json:
        import json

        print(json.dumps(found.to_json()))
    else:
        print(f"{options.split} part of {options.data or 'its own data'}\n\n{found.summary()}")
    if options.figures:
        draw(found, Path(options.figures), is_told=not (options.json or options.quiet))


def draw(found: "Assessment", folder: Path, is_told: bool) -> None:
    from vitreous.display.figures import save
    from vitreous.evaluation import figures

    drawn = {} if found.evaluation is None else figures.drawn(found.evaluation)
    curves = {one.features: one.few_shot for one in found.probes if one.few_shot}
    if curves:
        drawn["few_shot"] = figures.few_shot_curve(curves)
    for name, one in drawn.items():
        save(one, folder / name)
        if is_told:
            print(f"{folder / name}.png and .svg")


def scores_line(scores: dict[str, float]) -> str:
    """Losses as they are, other numbers as percentages, in the order of the task's metric."""
    shown = [
        f"{name.replace('_', '-')} {value:.4f}" if "loss" in name else f"{name} {percent(value, 2)}"
        for name, value in scores.items()
        if name != "pictures"
    ]
    return f"{'   '.join(shown)}   ({scores['pictures']:,.0f} pictures)"
