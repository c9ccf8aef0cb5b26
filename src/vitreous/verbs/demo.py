"""vitreous demo"""

import argparse

from vitreous.verbs import add_quiet

HELP = "Fit a few embedded pictures from the encoder that ships, and from random weights; five minutes on two cores."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="where the runs go (default: runs/demo)")
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.demo import demo
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        told = demo(options.out)
    print(told)
