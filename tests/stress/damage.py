"""One file of something that was saved is damaged: that is noticed before a weight of it is used, and named."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from stress import warm
from stress.campaign import Campaign, Facts
from stress.scenarios import SCENARIOS, bulk_words, model, once, reference
from vitreous.bulk.output import Output
from vitreous.errors import UserError
from vitreous.export.runtime import ExportedPredictor
from vitreous.search.index import Index
from vitreous.training.checkpoint import Checkpoints
from vitreous.weights.trained import Trained

# ---- ways to damage a file


def flipped(path: Path, draws: random.Random, other: Path) -> None:
    content = bytearray(path.read_bytes())
    bit = draws.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def truncated(path: Path, draws: random.Random, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draws.randrange(1, len(content))])


def empty(path: Path, draws: random.Random, other: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path, draws: random.Random, other: Path) -> None:
    path.unlink()


def swapped(path: Path, draws: random.Random, other: Path) -> None:
    """For the file of that name in another folder of the kind, which is whole, and of the same size perhaps."""
    shutil.copy(other, path)


WAYS = (flipped, truncated, empty, missing, swapped)


# ---- what is damaged: each returns whether the damage was noticed; what it says must name the file


def damaged_file(folder: Path, other: Path, way: Callable[..., None], draws: random.Random) -> Path:
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size}
    there = {path: other / path.relative_to(folder) for path in files}
    if way is swapped:  # a small file may be the same in both
        files = {
            path: content
            for path, content in files.items()
            if there[path].is_file() and there[path].read_bytes() != content
        }
    path, before = draws.choice(list(files.items()))
    way(path, draws, there[path])
    assert not path.exists() or path.read_bytes() != before
    return path


def checkpoint(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    reference(shared, "supervised")
    return _skipped(folder, shared / "reference" / "supervised", way, draws)


def shares(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    """Of a checkpoint of two ranks; a swapped one is of another step."""
    reference(shared, "sharded", ranks=2)
    return _skipped(folder, shared / "reference" / "sharded-2", way, draws)


def _skipped(folder: Path, run: Path, way: Callable[..., None], draws: random.Random) -> bool:
    """The one before is used, and the damaged one named."""
    shutil.copytree(run / "out" / "checkpoints", folder / "checkpoints")
    older, newer = (path for path in Checkpoints(folder / "checkpoints").paths().values())
    tensors = Checkpoints(folder / "checkpoints").latest()
    path = damaged_file(newer, older, way, draws)
    found = Checkpoints(folder / "checkpoints").latest()
    assert tensors is not None and found is not None
    if found.step == tensors.step:
        assert not found.notes and _equal(found.tensors, tensors.tensors) and found.state == tensors.state
        return False
    assert found.step == int(older.name.removeprefix("step-"))
    assert len(found.notes) == 1 and newer.name in found.notes[0], (path, found.notes)
    return True


def model_folder(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    reference(shared, "fit")
    where = shutil.copytree(model(shared) / "model", folder / "model")
    before = Trained.load(where)
    path = damaged_file(where, shared / "reference" / "fit" / "out" / "model", way, draws)
    try:
        after = Trained.load(where)
    except UserError as error:
        assert str(where) in str(error), error
        return True
    assert path.name == "manifest.json" and after.card == before.card
    assert _equal({"model": after.weights}, {"model": before.weights})
    return False


def exported(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    reference(shared, "export")
    where = shutil.copytree(shared / "reference" / "export" / "out", folder / "exported") / "model.onnx"
    path = damaged_file(where.parent, _another_export(shared), way, draws)
    try:
        ExportedPredictor(where, threads=1)
    except UserError as error:
        assert str(where) in str(error), error
        return True
    assert path != where, "a damaged file is used"  # its certificate: without it, or with other facts in it
    return False


def stored_predictions(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    """Of a teacher: the same command again asks anew for what is damaged, and for nothing else."""
    expected, _ = reference(shared, "teach")
    where = shutil.copytree(shared / "reference" / "teach" / "out", folder / "taught")
    parts = sorted(where.glob("epoch-*/steps-*"))
    one, other = draws.sample(parts, 2)
    damaged_file(one, other, way, draws)
    ended = warm.run(SCENARIOS["teach"].words(shared, where), folder / "again")
    assert SCENARIOS["teach"].outcome(where) == expected
    return ", 0 of them computed now" not in ended.printed


def index(folder: Path, shared: Path, way: Callable[..., None], draws: random.Random) -> bool:
    """A search refuses; the command that made the index makes it whole again, or refuses too."""
    reference(shared, "index")
    source, where = shared / "reference" / "index" / "out" / "rows", folder / "index" / "rows"
    shutil.copytree(source, where)
    damaged_file(where, _another_index(shared), way, draws)
    noticed, before = False, _vectors(source)
    for read in (_vectors, _rows):
        try:
            assert read(where) == read(source)
        except UserError as error:
            assert str(where) in str(error), error
            noticed = True
    ended = warm.Command(SCENARIOS["index"].words(shared, where.parent), folder / "again").wait()
    if ended.code == 0:
        assert _vectors(where) == before
        return noticed
    assert ended.code == 2 and ended.errors.count("\n") == 1 and str(where) in ended.errors, ended
    return True


def _vectors(where: Path) -> dict[str, bytes]:
    found = Index.open(str(where))
    return {name: vector.tobytes() for name, vector in zip(found.names.to_pylist(), found.vectors, strict=True)}


def _rows(where: Path) -> list[list[object]]:
    return [table.to_pylist() for table in Output(str(where)).tables()]


KINDS = (checkpoint, model_folder, exported, stored_predictions, index, shares)


def trial(number: int, folder: Path, shared: Path) -> Facts:
    kind, way = KINDS[number % len(KINDS)], WAYS[number // len(KINDS) % len(WAYS)]
    noticed = kind(folder, shared, way, random.Random(number))
    return {"what": kind.__name__, "way": way.__name__, "noticed": noticed}


def _equal(one: Mapping[str, Mapping[str, torch.Tensor]], two: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(tensor, two[stem][name]) for stem, named in one.items() for name, tensor in named.items()
    )


def _another_index(shared: Path) -> Path:
    """Of fewer pictures, by the same model."""

    def make(new: Path) -> None:
        warm.run(bulk_words("index", ["--model"], "train")(shared, new), shared / "said" / "another-index")

    return once(shared / "another-index", make) / "rows"


def _another_export(shared: Path) -> Path:
    """Of another model, under the same name."""

    def make(new: Path) -> None:
        reference(shared, "fit")
        source = shared / "reference" / "fit" / "out"
        warm.run(["export", str(source), "--quiet", "--out", str(new / "model.onnx")], shared / "said" / "another")

    return once(shared / "another-export", make)


CAMPAIGN = Campaign(
    name="damage",
    promise="a damaged file is noticed before a weight is used, and named; the last good checkpoint is used",
    full=400,
    trial=trial,
    short=(0, 22, 25, 29),
)
