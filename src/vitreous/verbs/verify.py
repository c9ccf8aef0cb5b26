"""vitreous verify"""

import argparse
import sys

from vitreous.verbs import add_device, add_quiet

HELP = "Check that a run's files are intact, and that its pictures are still those it was trained on."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run directory; only read, never written to")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="prove exact resume on this machine: a few steps, with and without a stop between them, in a copy",
    )
    add_device(parser)
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> None:
    import json
    from dataclasses import asdict

    from vitreous.jobs.verify import verify
    from vitreous.terminal import quietly, table

    with quietly(options.quiet):
        checks = verify(options.run, options.resume, options.device)
    if options.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        rows = [("ok" if check.holds else "WRONG", check.name, check.found) for check in checks]
        print(table(rows, ("", "what", "found")))
    sys.exit(0 if all(check.holds for check in checks) else 1)
