"""vitreous study"""

import argparse
import sys
from typing import TYPE_CHECKING

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet, with_device
from vitreous.verbs.recipes import print_fields

if TYPE_CHECKING:
    from vitreous.studies.grid import Grid
    from vitreous.studies.study import Study

HELP = "Repeat one of the paper's studies on any data: a grid of runs, a table and figures."
TAKES_SETTINGS = True


def add(parser: argparse.ArgumentParser) -> None:
    from vitreous.studies import STUDIES

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    lines = [f"  {name:12}{asks}" for name, (_, _, asks) in STUDIES.items()]
    parser.epilog = (
        "studies (`vitreous study NAME --help` lists the settings of one, such as --seeds 3 --steps 4000):\n"
        + "\n".join(lines)
        + "\n\nEvery cell is an ordinary run directory. The same command again continues where it stopped,\n"
        "and two at once, on one GPU or on two, share the cells between them."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="which study")
    parser.add_argument("data", nargs="?", metavar="DATA", help="a folder of pictures, a file, or a data set's name")
    parser.add_argument(
        "--out", metavar="DIR", help="where its runs, results and figures go (default: runs/study-NAME)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes on two cores, to see how it works (on fashion)"
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="start no further run after this many minutes")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace, changes: dict[str, str]) -> None:
    if options.name is None:
        if not options.help:
            raise UserError("study needs a name; `vitreous study --help` lists them")
        options.parser.print_help()
        return
    from pathlib import Path

    from vitreous import settings
    from vitreous.studies import find_study
    from vitreous.studies.study import run_study
    from vitreous.terminal import quietly

    changes = with_device(changes, options, "device")
    kind = find_study(options.name)
    given = {} if options.data is None else {"data": options.data}
    for name in changes:
        if name in kind.unused:
            raise UserError(
                f"--{name}: {kind.name} does not use it; `vitreous study {kind.name} --help` lists its settings"
            )
    study = settings.changed(kind.quick(**given) if options.quick else kind(**given), changes)
    if options.help:
        print_fields(study, without=kind.unused)
        return
    out = Path(options.out or f"runs/study-{options.name}")
    with quietly(options.quiet):
        grid = run_study(study, out, options.minutes)
    _print(study, grid)
    print(f"results {out}/results.csv and results.json   figures {out}/*.png and *.svg")
    if grid.rows and all("failed" in row for row in grid.rows):
        sys.exit("vitreous: no cell has a result; the same command tries them again")


def _print(study: "Study", grid: "Grid") -> None:
    from vitreous.terminal import table

    print(table(*study.table(grid.rows)))
    for finding in study.findings(grid.rows):
        print(finding)
    dropped = grid.about.get("dropped_from_pretraining", {})
    for where, number in ((where, number) for where, number in dropped.items() if number):
        print(f"{number:,} training pictures occur in the test set of {where} and were left out")
    failed = [row for row in grid.rows if "failed" in row]
    if failed:
        print(f"{counted(len(failed), 'cell')} failed; the first: {failed[0]['cell']}: {failed[0]['failed']}")
    if grid.left:
        print(f"Time ran out with {counted(len(grid.left), 'cell')} left; the same command runs them.")
