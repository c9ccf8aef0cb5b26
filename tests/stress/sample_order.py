"""Which samples a run sees after it was stopped and resumed, for any number of readers: each once an epoch, in the
order of a run that was never stopped."""

import hashlib
import json
from collections import Counter
from functools import partial
from pathlib import Path

from stress import warm
from stress.campaign import Campaign, Facts
from stress.scenarios import STEPS_PER_EPOCH, once, pictures, recipe_file

WORKERS = (0, 1, 2, 4)
EPOCHS = range(6)  # in which the run is stopped
RESUMES = (1, 2, 3)
STEPS = STEPS_PER_EPOCH * (len(EPOCHS) + 1)
NUM_PICTURES = 40


def trial(number: int, folder: Path, shared: Path) -> Facts:
    workers = WORKERS[number % 4]
    epoch, resumes = EPOCHS[number // 4 % 6], RESUMES[number // 24]
    expected = seen(_reference(shared))
    first = epoch * STEPS_PER_EPOCH + 1 + number % (STEPS_PER_EPOCH - 1)  # never at the end of an epoch
    stops = [first + 2 * place for place in range(resumes)]
    for place, stop in enumerate([*stops, None]):
        _train(shared, folder / "run", folder / f"said-{place}", folder / "seen", workers, stop)
    found = seen(folder / "seen")
    assert found == expected, f"{workers} workers, stopped after {stops}: other samples than in one go"
    for start in range(0, STEPS, STEPS_PER_EPOCH):
        counts = Counter(sample for step in found[start : start + STEPS_PER_EPOCH] for sample in step["ids"])
        assert counts == Counter(range(NUM_PICTURES)), f"epoch {start // STEPS_PER_EPOCH + 1}: {counts}"
    return {"workers": f"{workers}", "epoch": f"{epoch + 1}", "resumes": f"{resumes}", "steps": len(found)}


def _reference(shared: Path) -> Path:
    """In one go, and read by no worker."""
    return once(shared / "order", lambda new: _train(shared, shared / "order-run", shared / "order-said", new, 0, None))


def seen(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _train(shared: Path, out: Path, said: Path, log: Path, workers: int, until: int | None) -> None:
    pictures(shared)
    words = ["train", str(recipe_file(shared, "read_by_workers")), "--quiet", "--out", str(out)]
    words += [
        "--training.workers",
        str(workers),
        "--training.steps",
        str(STEPS),
        "--training.checkpoint_every_s",
        "100",
    ]
    warm.run(words, said, before=partial(_watched, log, until))


def _watched(log: Path, until: int | None) -> None:
    """Every batch is written down as it goes into a step; the run is stopped after one of them."""
    from vitreous.data.loader import TrainLoader
    from vitreous.jobs import train as job

    prepare, train = TrainLoader.prepare, job.train

    def noted(self: TrainLoader, *inputs: object) -> object:
        batch = prepare(self, *inputs)
        pixels = hashlib.sha256(batch.images.numpy().tobytes()).hexdigest()
        with log.open("a") as file:
            file.write(json.dumps({"ids": batch.ids.tolist(), "keys": batch.keys.tolist(), "pixels": pixels}) + "\n")
        return batch

    TrainLoader.prepare = noted
    job.train = partial(train, until=until)


CAMPAIGN = Campaign(
    name="order",
    promise="the same samples, keys and pixels after every resume; in every epoch none twice, none missing",
    full=len(WORKERS) * len(EPOCHS) * len(RESUMES),
    trial=trial,
    short=(6, 51),
)
