"""What benchmarks/on_gpu.py found, taken into docs/results: its files and figures there, its tables as Markdown.

    python benchmarks/pages.py measured

Of the entries families, scaling_1 to scaling_3 and simmim, as far as they are: files join those of earlier calls,
figures are drawn of all of them, and tables are printed, to be put into cifar10.md, studies.md and unlabelled.md.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from families import lines
from unlabelled import COLUMNS, METHODS, table_figure
from vitreous import settings
from vitreous.cli import one_line_errors
from vitreous.display import figures
from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.studies.scaling import Scaling

DOCS = Path(__file__).resolve().parents[1] / "docs" / "results"
Row = dict[str, Any]


def families(out: Path, docs: Path) -> None:
    kept = docs / "families.jsonl"
    rows = {row["run"]: row for row in (*lines(kept), *lines(out / "families.jsonl"))}
    if not rows:
        return
    atomic.write_bytes("".join(json.dumps(row) + "\n" for row in rows.values()).encode(), kept)
    header = ("model", "parameters", "epochs", "training FLOP", "seconds a run", "seeds", "accuracy")
    table = [family(seeds) for seeds in by_run(rows.values())]
    show(f"cifar10.md, of {kept.name} ({made(rows.values())})", header, table)


def by_run(rows: Iterable[Row]) -> list[list[Row]]:
    """Seeds of one run together."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["run"].replace(f"-seed{row['seed']}", ""), []).append(row)
    return list(found.values())


def family(seeds: Sequence[Row]) -> tuple[str, ...]:
    first, times = seeds[0], sorted(row["train_s"] for row in seeds)
    scored = "" if first["scored_on"] == "test" else " (validation)"
    return (
        first["model"] + "".join(f", {name} {text}" for name, text in first["changes"].items()),
        f"{first['parameters'] / 1e6:.2f} M",
        f"{first['epochs']:.0f}",
        f"{first['training_flops']:.1e}".replace("e+", "e"),
        " to ".join(dict.fromkeys(f"{seconds:.0f}" for seconds in (times[0], times[-1]))),
        ", ".join(str(row["seed"]) for row in seeds),
        percent(row["accuracy"] for row in seeds) + scored,
    )


def scaling(out: Path, docs: Path) -> None:
    """Several processes filled one study. Each knows the cells that were done when it last looked."""
    found = [folder for folder in sorted(out.glob("scaling_*/scaling")) if (folder / "results.json").is_file()]
    if not found:
        return
    documents = [atomic.read_json(folder / "results.json") for folder in found]
    fullest = max(range(len(found)), key=lambda number: len(documents[number]["rows"]))
    document, kept = documents[fullest], docs / "studies" / "families"
    shutil.copytree(found[fullest], kept, dirs_exist_ok=True)
    study, rows = settings.from_json(Scaling, document["settings"]), document["rows"]
    for name, drawn in study.figures(rows).items():
        figures.save(drawn, kept / name)
    scored = [row for row in rows if "accuracy" in row]
    table = [
        (f"{length:,}", *(percent(accuracies(scored, model, length)) for model in study.models))
        for length in study.lengths
    ]
    cells = len(study.models) * len(study.lengths) * study.seeds
    show(f"studies.md, of {len(scored)} of {cells} cells ({made(scored)})", ("steps", *study.models), table)
    print("\n".join(study.findings(rows)))


def accuracies(rows: Iterable[Row], model: str, length: int) -> list[float]:
    return [row["accuracy"] for row in rows if (row["model"], row["length"]) == (model, length)]


def simmim(out: Path, docs: Path) -> None:
    """Beside the methods measured before, in one figure: on the same part of CIFAR-10, with its own commit."""
    if not (out / "simmim.json").is_file():
        return
    new, kept = atomic.read_json(out / "simmim.json"), docs / "unlabelled.json"
    all_methods = atomic.read_json(kept)
    if new["scored_on"] != all_methods["scored_on"]:
        raise UserError(f"{out / 'simmim.json'}: scored on {new['scored_on']}, unlike {kept}")
    where = new["environment"]
    row = new["methods"]["simmim"] | {"commit": where["commit"], "device": (where["gpus"] or [where["cpu"]])[0]}
    all_methods["methods"]["simmim"] = row
    atomic.write_json(all_methods, kept)
    figures.save(table_figure(all_methods["methods"], all_methods["scored_on"]), kept.with_suffix(""))
    epochs, flop = (f"{row[name]:{form}}" if name in row else "" for name, form in PRETRAINING.items())
    cells = (METHODS["simmim"].title, epochs, flop.replace("e+", "e"), *(percent(one(row, name)) for name in COLUMNS))
    show(f"unlabelled.md ({made([row])})", ("method", "passes", "FLOP", *COLUMNS.values()), [cells])


PRETRAINING = {"epochs": ".0f", "training_flops": ".1e"}


def one(row: Row, name: str) -> list[float]:
    return [row[name]] if name in row else []


# ---- words


def percent(accuracies: Iterable[float]) -> str:
    """Each, and the mean of several."""
    values = [100 * accuracy for accuracy in accuracies]
    told = ", ".join(f"{value:.2f}" for value in values)
    return told if len(values) < 2 else f"{statistics.fmean(values):.2f} ({told})"


def made(rows: Iterable[Row]) -> str:
    """By which commits, on what."""
    names = [(row["commit"] or "no commit")[:7] + " on " + (row.get("hardware") or row["device"]) for row in rows]
    return ", ".join(dict.fromkeys(names))


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n{title}\n")
    for cells in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="as given to on_gpu.py")
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    if not options.out.is_dir():
        raise UserError(f"{options.out}: there is no such folder")
    for taken in (families, scaling, simmim):
        taken(options.out, options.docs)


if __name__ == "__main__":
    with one_line_errors():
        main()
