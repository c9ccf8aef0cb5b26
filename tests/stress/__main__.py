"""python -m stress [NAME ...] [--count N]: run campaigns in full, or so many trials of each.

Every result is a line of --log at once; the same command again goes on with the trials that have none, and repeats
those that did not hold. The summary is written to --out, where campaigns that are not in the log stay as they are.
"""

import argparse
import json
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stress.campaign import Campaign, Facts, Unable
from stress.campaigns import CAMPAIGNS
from vitreous.storage import atomic
from vitreous.terminal import Bar
from vitreous.training.environment import environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    campaign: str
    trial: int
    outcome: str  # held, broken, or unable
    seconds: float
    commit: str | None
    facts: Facts = field(default_factory=dict)
    why: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(CAMPAIGNS)} (default: all)")
    parser.add_argument("--count", type=int, metavar="N", help="trials of each (default: all of the full form)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "reliability.json")
    parser.add_argument("--log", type=Path, default=ROOT / "runs" / "stress.jsonl")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CAMPAIGNS]
    if unknown:
        parser.error(f"there is no campaign {unknown[0]!r}; there are {', '.join(CAMPAIGNS)}")
    options.log.parent.mkdir(parents=True, exist_ok=True)
    machine = environment()
    with tempfile.TemporaryDirectory(prefix="vitreous-stress-", dir=options.folder) as folder:
        for name in options.names or CAMPAIGNS:
            run(CAMPAIGNS[name], Path(folder), options.log, options.count, commit_of(machine))
    results = read(options.log)
    before = atomic.read_json(options.out)["campaigns"] if options.out.exists() else {}
    atomic.write_json(summary(results, machine, before), options.out)
    broken = [one for one in results.values() if one.outcome == "broken"]
    for one in broken:
        print(f"{one.campaign} {one.trial}: {one.why}")
    raise SystemExit(1 if broken else 0)


def commit_of(machine: dict[str, Any]) -> str | None:
    """What is tried is not the commit where there are uncommitted changes, and the results must say so."""
    commit: str | None = machine["commit"]
    return f"{commit} and uncommitted changes" if machine["uncommitted_changes"] else commit


def run(campaign: Campaign, folder: Path, log: Path, count: int | None, commit: str | None) -> None:
    known = {trial for (name, trial), one in read(log).items() if name == campaign.name and one.outcome == "held"}
    wanted = range(campaign.num_trials if count is None else min(count, campaign.num_trials))
    left = [number for number in wanted if number not in known]
    (folder / "shared").mkdir(exist_ok=True)
    counts: Counter[str] = Counter()
    with Bar(campaign.name, len(wanted), done=len(wanted) - len(left), unit="trials") as bar:
        for place, number in enumerate(left, start=len(wanted) - len(left) + 1):
            one = tried(campaign, number, folder, commit)
            counts[one.outcome] += 1
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            bar.update(place, **{name: str(number) for name, number in counts.items()})


def tried(campaign: Campaign, number: int, folder: Path, commit: str | None) -> Result:
    own = folder / f"{campaign.name}-{number}"
    own.mkdir()
    began, facts, outcome, why = time.monotonic(), {}, "held", ""
    try:
        facts = campaign.trial(number, own, folder / "shared")
    except Unable as error:
        outcome, why = "unable", str(error)
    except AssertionError as error:
        outcome, why = "broken", str(error) or traceback.format_exc()
    except Exception:  # of the trial itself: to be looked at, and no reason to end the others
        outcome, why = "broken", traceback.format_exc()
    shutil.rmtree(own, ignore_errors=True)
    return Result(campaign.name, number, outcome, round(time.monotonic() - began, 2), commit, facts, why)


def read(log: Path) -> dict[tuple[str, int], Result]:
    """The last result of every trial."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = [Result(**json.loads(line)) for line in lines]
    return {(one.campaign, one.trial): one for one in found}


def summary(results: dict[tuple[str, int], Result], machine: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """`before`: of campaigns, of which those that have no results here are kept."""
    tried = {name for name, _ in results}
    about = {name: machine[name] for name in ("platform", "cpu", "cores", "versions")}
    return {
        "command": "make stress",
        "environment": about,
        "campaigns": {
            name: before[name] if name in before and name not in tried else _summed(one, results)
            for name, one in CAMPAIGNS.items()
        },
    }


def _summed(campaign: Campaign, results: dict[tuple[str, int], Result]) -> dict[str, Any]:
    mine = [one for (name, _), one in sorted(results.items()) if name == campaign.name]
    of = Counter(one.outcome for one in mine)
    seconds = [one.seconds for one in mine]
    return {
        "promise": campaign.promise,
        "full": campaign.full,
        **{name: of[name] * campaign.per_trial for name in ("held", "broken", "unable")},
        "seconds": round(sum(seconds), 1),
        "longest_trial_s": max(seconds, default=0.0),
        "commits": sorted({one.commit for one in mine if one.commit}),
        "facts": _counted([one.facts for one in mine]),
        "why": [f"{one.trial}: {_without_folders(one.why)}" for one in mine if one.why],
    }


def _without_folders(why: str) -> str:
    """Its end, without the names of this machine's folders."""
    return re.sub(r"/[^\s'\"]*/", "", why)[-400:]


def _counted(facts: list[Facts]) -> dict[str, Any]:
    """How often every word was found; of numbers the sum and the largest."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in facts for name in one):
        values = [one[name] for one in facts if name in one]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            found[name] = {"sum": round(sum(values), 3), "largest": max(values)}
        else:
            found[name] = dict(sorted(Counter(str(value) for value in values).items()))
    return found


if __name__ == "__main__":
    main()
