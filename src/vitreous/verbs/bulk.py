"""What `vitreous predict`, `vitreous embed` and `vitreous index` share for many pictures."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from vitreous.display.words import counted
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.bulk.output import Output
    from vitreous.bulk.work import Work


def add_bulk(parser: argparse.ArgumentParser, default: str | None) -> None:
    group = parser.add_argument_group("many pictures (docs/MANY.md)")
    known = f" (default: {default})" if default else "; rows go to --out as parquet, and a rerun does what is missing"
    group.add_argument("--engine", choices=("local", "ray"), default=default, help=f"what runs the work{known}")
    group.add_argument("--part", type=int, default=4096, metavar="N", help="pictures per output file (default: 4096)")
    group.add_argument(
        "--workers", type=int, metavar="N", help="Ray workers (default: as many as the cluster has room for)"
    )
    group.add_argument(
        "--cpus", type=int, default=1, metavar="N", help="cores per Ray worker without a GPU (default: 1)"
    )


def run_bulk(options: argparse.Namespace, work: "Work", finish: "Callable[[Output], None] | None" = None) -> None:
    from vitreous.bulk.engines import Pool
    from vitreous.bulk.job import Request, run
    from vitreous.bulk.output import Output
    from vitreous.terminal import note, printable, quietly

    for name in ("part", "workers", "cpus", "batch"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: at least 1")
    request = Request(
        work=work,
        inputs=options.pictures,
        out=options.out,
        engine=options.engine,
        device=options.device,
        batch=options.batch or 16,
        per_part=options.part,
        pool=Pool(workers=options.workers, cpus=options.cpus),
        lines=sys.stdin.buffer,
    )
    with quietly(options.quiet):
        result = run(request)
        if finish is not None:
            finish(Output(result.out))
    rows = counted(result.rows, "row")
    print(f"Saved to {options.out}: {rows}, {result.failed:,} without a result, {result.added:,} new")
    if first := Output(result.out).first_failed():
        note(f"the first without a result is {printable(first[0])}: {printable(first[1])} (the column `error` has all)")
    if result.failed == result.rows:
        raise UserError(f"none of {result.rows:,} pictures could be read; column `error` says why")
