"""vitreous demo"""

import argparse

HELP = "Pre-train on the embedded data, then fit from it at a higher resolution; five minutes on two cores."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="where the runs go (default: runs/demo)")


def run(options: argparse.Namespace) -> None:
    from vitreous.demo import demo

    demo(options.out)
