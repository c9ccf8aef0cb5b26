"""Studies on one GPU within a time limit; the same command again goes on where it ended.

    python benchmarks/studies.py data-size scaling positions --minutes 25 --runs runs/studies --out docs/results/studies

Cells go to --runs, one folder each; results.json, results.csv and figures of every study to --out, after each cell.
Cells are ordered so that the first seed of everything comes first. Further settings go to every study that has them:
--seeds 2 --compile false; for one study alone: --data-size.steps 2000.
"""

import argparse
import shutil
import time
from dataclasses import fields
from pathlib import Path

import torch

from vitreous import settings
from vitreous.cli import dotted, one_line_errors
from vitreous.display import figures
from vitreous.studies import STUDIES, find_study
from vitreous.studies.study import Study, run_study
from vitreous.terminal import table

DRAW_EVERY_S = 60.0  # figures are drawn again while cells run


def configured(name: str, changes: dict[str, str]) -> Study:
    """The study with the changes that it knows; `data_size.steps` is for data-size alone."""
    kind, prefix = find_study(name), name.replace("-", "_") + "."
    own = {field.name for field in fields(kind)}
    chosen = {key: text for key, text in changes.items() if key in own}
    chosen |= {key.removeprefix(prefix): text for key, text in changes.items() if key.startswith(prefix)}
    return settings.changed(kind(), chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=STUDIES)
    parser.add_argument("--minutes", type=float, default=25.0, help="for all studies together")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"))
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    torch.set_float32_matmul_precision("high")
    ends = time.monotonic() + 60 * options.minutes
    for number, name in enumerate(options.studies):
        # Each study has its share of what is left, so that none is left out.
        minutes = max(0.0, (ends - time.monotonic()) / 60) / (len(options.studies) - number)
        run(name, configured(name, dotted(rest)), minutes, options)


def run(name: str, study: Study, minutes: float, options: argparse.Namespace) -> None:
    out = options.out / name
    drawn_at = time.monotonic()

    def draw(rows: list[dict[str, object]]) -> None:
        nonlocal drawn_at
        last = rows[-1]
        told = last.get("failed") or f"{last.get('accuracy', last.get('val_accuracy', 0.0)):.2%}"
        print(f"{name} {last['cell']}: {told}  {last.get('train_s', 0)} s", flush=True)
        if time.monotonic() - drawn_at > DRAW_EVERY_S:
            for figure, drawn in study.figures(rows).items():
                figures.save(drawn, out / figure)
            drawn_at = time.monotonic()

    # Which pictures occur in another test set is worked out once, whichever study needs it first.
    found, own = options.runs / "overlap.json", options.runs / name / "overlap.json"
    if found.is_file() and not own.is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, own)
    grid = run_study(study, options.runs / name, minutes, out, draw)
    if own.is_file():
        shutil.copy(own, found)
    print(table(*study.table(grid.rows)))
    print("\n".join(study.findings(grid.rows)))
    if grid.left:
        print(f"{name}: the time was over before {len(grid.left)} cells were run; the same command goes on with them")


if __name__ == "__main__":
    with one_line_errors():
        main()
