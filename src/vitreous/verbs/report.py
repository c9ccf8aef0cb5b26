"""vitreous report"""

import argparse

from vitreous.verbs import add_device, add_quiet

HELP = "Write the report of a fit again from its run; nothing is trained."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run directory of a fit that has finished")
    parser.add_argument("--out", metavar="FILE", help="where the page goes (default: report.html in the run)")
    add_device(parser)
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.commands import redraw
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        path = redraw(options.run, options.out, device=options.device)
    print(f"Saved to {path}")
