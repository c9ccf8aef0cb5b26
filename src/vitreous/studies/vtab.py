"""The Visual Task Adaptation Benchmark (Zhai et al. 2019): its 19 tasks, and suites of the tasks that are available."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitreous.data.opening import SHARED
from vitreous.errors import UserError, did_you_mean

Group = Literal["natural", "specialised", "structured"]
GROUPS: tuple[Group, ...] = get_args(Group)
EXAMPLES = 1000  # training examples per task
TRAIN_SHARE = 0.8  # in a sweep, 800 examples to train on and 200 to choose on


@dataclass(frozen=True)
class VtabTask:
    group: Group
    classes: int
    train: int  # pictures in the official training and validation sets together
    test: int


VTAB = {
    "caltech101": VtabTask("natural", 102, 3_060, 6_084),
    "cifar100": VtabTask("natural", 100, 50_000, 10_000),
    "dtd": VtabTask("natural", 47, 3_760, 1_880),
    "flowers102": VtabTask("natural", 102, 2_040, 6_149),
    "pets": VtabTask("natural", 37, 3_680, 3_669),
    "sun397": VtabTask("natural", 397, 87_003, 21_750),
    "svhn": VtabTask("natural", 10, 73_257, 26_032),
    "camelyon": VtabTask("specialised", 2, 294_912, 32_768),
    "eurosat": VtabTask("specialised", 10, 21_600, 5_400),
    "resisc45": VtabTask("specialised", 45, 25_200, 6_300),
    "retinopathy": VtabTask("specialised", 5, 46_032, 42_670),
    "clevr-count": VtabTask("structured", 8, 70_000, 15_000),
    "clevr-distance": VtabTask("structured", 6, 70_000, 15_000),
    "dmlab": VtabTask("structured", 6, 88_178, 22_735),
    "dsprites-location": VtabTask("structured", 16, 663_552, 73_728),
    "dsprites-orientation": VtabTask("structured", 16, 663_552, 73_728),
    "kitti-distance": VtabTask("structured", 4, 5_711, 711),
    "norb-azimuth": VtabTask("structured", 18, 36_450, 12_150),
    "norb-elevation": VtabTask("structured", 9, 36_450, 12_150),
}


@dataclass(frozen=True)
class SuiteTask:
    """A task and where its pictures are."""

    name: str
    group: Group
    where: str


RENDERED = ("location", "orientation", "count", "distance", "size")


def offline_suite() -> list[SuiteTask]:
    """The embedded set and rendered tasks, which everybody has, and the sets in the folder that VITREOUS_DATA names."""
    shared = os.environ.get("VITREOUS_DATA")
    there = [name for name in SHARED if shared and (Path(shared) / name).exists()]
    natural = [SuiteTask(name, "natural", name) for name in ("fashion", *there)]
    return natural + [SuiteTask(f"rendered-{name}", "structured", f"rendered:{name}") for name in RENDERED]


def find_suite(where: str, further: Sequence[str] = ()) -> list[SuiteTask]:
    """`offline`, `none`, a folder with one folder or file per task, or a JSON file; and further NAME=PATH.

    In JSON: {"eurosat": "/data/eurosat", "my-task": {"where": "/data/mine", "group": "natural"}}.
    """
    if where == "offline":
        found = offline_suite()
    elif where == "none":
        found = []
    elif Path(where).is_dir():
        entries = sorted(entry for entry in Path(where).iterdir() if not entry.name.startswith("."))
        found = [suite_task(entry.stem, str(entry)) for entry in entries if entry.is_dir() or entry.stem in VTAB]
    elif where.endswith(".json"):
        found = [_from_json(name, task, where) for name, task in _read(Path(where)).items()]
    else:
        raise UserError(f"{where}: not a suite of tasks. Give offline, none, a folder of tasks, or a JSON file")
    for words in further:
        name, given, path = words.partition("=")
        if not given:
            raise UserError(f"--tasks {words}: tasks are given as NAME=PATH, or NAME:GROUP=PATH")
        found.append(suite_task(name, path))
    if not found:
        raise UserError(f"{where}: a suite without tasks. Name some with --tasks NAME=PATH")
    names = [task.name for task in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{where}: two tasks are called {name}. Give one another name: --tasks NAME:GROUP=PATH")
    return found


def suite_task(name: str, where: str) -> SuiteTask:
    """`eurosat`, or `mine:natural` for a task that VTAB does not know."""
    name, _, group = name.partition(":")
    if not group and name not in VTAB:
        raise UserError(
            f"{name} is not one of VTAB's tasks: name its group, as {name}:natural "
            f"({', '.join(GROUPS)}).{did_you_mean(name, tuple(VTAB))}"
        )
    for known in GROUPS:
        if known == (group or VTAB[name].group):
            return SuiteTask(name, known, where)
    raise UserError(f"{name}: no group {group!r} among {', '.join(GROUPS)}.{did_you_mean(group, GROUPS)}")


def _from_json(name: str, task: Any, file: str) -> SuiteTask:
    if isinstance(task, str):
        return suite_task(name, task)
    if not isinstance(task, dict) or not isinstance(task.get("where"), str):
        raise UserError(f'{file}: {name} needs a path, or {{"where": PATH, "group": GROUP}}')
    return suite_task(f"{name}:{task['group']}" if "group" in task else name, task["where"])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: a suite is an object: task -> path")
    return found


def vtab_means(accuracies: dict[str, float], groups: dict[str, str]) -> dict[str, float]:
    """The mean of every group that has tasks, and of all tasks (not of the groups), as in VTAB."""
    found = {
        group: sum(some) / len(some)
        for group in GROUPS
        if (some := [value for task, value in accuracies.items() if groups[task] == group])
    }
    return found | {"all": sum(accuracies.values()) / len(accuracies)}
