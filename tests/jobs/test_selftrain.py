"""Teacher, labels, student, rounds: the same after a stop, and nothing that a model is measured by is learned from."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous import settings
from vitreous.cli import main
from vitreous.data.augmentation import Augmentation, MixSettings
from vitreous.data.joined import read_joined
from vitreous.data.sources import DataSettings, without
from vitreous.errors import UserError
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.selftrain import selftrain
from vitreous.models import ViTSettings
from vitreous.recipes.fashion import fashion_vit
from vitreous.studies.grid import DecodedOnce
from vitreous.teaching.pseudo import PseudoSettings, believed
from vitreous.teaching.sets import Sets
from vitreous.training.averages import AverageSettings
from vitreous.training.optim import SGDSettings
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained


def recipe(steps=6, **limits):
    few = fashion_vit()
    return replace(
        few,
        data=replace(DataSettings(val_fraction=0.01), **({"train_limit": 60} | limits)),
        model=ViTSettings(picture_px=(28, 28), patch=14, width=16, depth=1, heads=2, dropout=0.1, stochastic_depth=0.2),
        augmentation=Augmentation(mix=MixSettings(mixup=0.8)),
        optimizer=SGDSettings(lr=0.05),
        average=AverageSettings(kind="ema", factor=0.9),
        training=replace(few.training, steps=steps, batch_size=20, log_every_steps=2, evaluate_every_epochs=0),
    )


LOW = PseudoSettings(confidence=0.05)
OPEN = DecodedOnce()  # the pictures, for all runs here


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    out = tmp_path_factory.mktemp("selftrain") / "out"
    return out, selftrain(recipe(), out, rounds=2, pseudo=LOW, open_data=OPEN)


def test_every_student_learns_from_the_one_before(rounds):
    out, results = rounds
    assert list(results) == ["teacher", "student-1", "student-2"]
    assert all({"val", "test"} <= set(found) for found in results.values())
    data = recipe().data
    whole, few = OPEN(replace(data, train_limit=None)).train, OPEN(data).train
    rest = without(whole, few.numbers(np.arange(len(few))).tolist())
    for number, teacher in ((1, "teacher"), (2, "student-1")):
        about, taken, probabilities = read_joined(out / f"labels-{number}")
        assert about.pictures == len(whole) - len(few) == about.account["shown"]
        assert sum(one["pictures"] for one in about.account["by_class"]) == len(taken)
        # What was stored is what the teacher says of these pictures, shown as they are.
        model = Trained.load(out / teacher)
        with torch.no_grad():
            shown = model.card.preprocessing.normalised(
                model.card.preprocessing.resized(np.stack([rest.read(int(place)) for place in taken[:5]]))
            )
            said = model.task().eval().predict(shown).logits.softmax(dim=1)
        assert np.abs(said.numpy() - probabilities[:5]).max() < 2e-3
    assert evaluate(out / "student-1", split="val").evaluation is not None  # its own data is found again


def test_the_same_after_a_kill(rounds, tmp_path):
    """The process dies after the first round; the same call goes on, and ends in the same weights."""
    out = tmp_path / "out"
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import os, signal\n"
        "from test_selftrain import LOW, recipe\n"
        "from vitreous.jobs import selftrain as job\n"
        "def dies(name, found): os.kill(os.getpid(), signal.SIGKILL) if name == 'student-1' else None\n"
        "job.selftrain(recipe(), sys.argv[1], rounds=2, pseudo=LOW, read_test=False, told=dies)\n"
    )
    here = str(__file__).rpartition("/")[0]
    ended = subprocess.run([sys.executable, "-c", code, str(out), here], check=False, capture_output=True, timeout=100)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert not (out / "labels-2").exists()
    selftrain(recipe(), out, rounds=2, pseudo=LOW, read_test=False, open_data=OPEN)
    first, again = (fingerprint(Trained.load(one / "student-2").task(), {}) for one in (rounds[0], out))
    assert first == again


def test_more_rounds_may_follow_and_another_thing_is_refused(rounds):
    out, results = rounds
    assert selftrain(recipe(), out, rounds=2, pseudo=LOW, open_data=OPEN) == results  # nothing is trained again
    with pytest.raises(UserError, match=r"a different rule for labels \(selftrain.json\); give"):
        selftrain(recipe(), out, rounds=2, pseudo=PseudoSettings(confidence=0.06), open_data=OPEN)
    with pytest.raises(UserError, match="started with a different recipe"):
        selftrain(recipe(steps=7), out, rounds=2, pseudo=LOW, open_data=OPEN)
    sure = out.parent / "sure"
    with pytest.raises(UserError, match="is not confident enough about any of"):
        selftrain(recipe(), sure, rounds=1, pseudo=PseudoSettings(confidence=1.0), open_data=OPEN)
    assert "student-1" in selftrain(recipe(), sure, rounds=1, pseudo=LOW, open_data=OPEN)  # as it was told to
    with pytest.raises(UserError, match="used with their labels; name others with --unlabelled"):
        selftrain(recipe(train_limit=None), out.parent / "whole", rounds=1, open_data=OPEN)


def test_pictures_of_the_test_part_are_left_out(tmp_path):
    few = OPEN(recipe().data)
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    for number, source in enumerate((few.test, few.val, few.train)):
        for index in range(4):
            Image.fromarray(source.read(index)).save(folder / f"{number}-{index}.png")
    noise = np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    sets = Sets.opened(recipe().data, str(folder), OPEN)
    names = {sets.rest.where(index).rpartition("/")[2] for index in range(len(sets.rest))}
    assert names == {*(f"2-{index}.png" for index in range(4)), "noise.png"}
    assert len(sets.unlabelled.build().train) == 5  # found again without them


def test_which_labels_are_believed():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.55, 0.45], [0.2, 0.8], [0.8, 0.2]], dtype=np.float32)
    places = np.array([3, 5, 6, 8, 9])
    found = believed(places, probabilities, PseudoSettings(confidence=0.6))
    assert found.taken.tolist() == [3, 5, 8, 9] and found.shown == 5
    found = believed(places, probabilities, PseudoSettings(confidence=0.5, per_class=2, labels="hard"))
    assert found.taken.tolist() == [3, 8, 9]
    assert found.probabilities.tolist() == [[1, 0], [0, 1], [1, 0]]
    first, second = found.by_class(("a", "b"))
    assert (first.pictures, second.pictures) == (2, 1) and first.confidence == pytest.approx(0.85)


def test_from_the_command_line(rounds, tmp_path, capsys):
    settings.save(recipe(), tmp_path / "recipe.json")
    words = [str(tmp_path / "recipe.json"), "--rounds", "1", "--confidence", "0.05", "--labels", "hard"]
    words += ["--teacher", str(rounds[0] / "teacher")]
    main(["selftrain", *words, "--out", str(tmp_path / "out"), "--quiet"])
    assert "student-1  test" in capsys.readouterr().out
    stored = read_joined(tmp_path / "out/labels-1")[2]
    assert set(np.unique(stored).tolist()) == {0.0, 1.0}
    assert json.loads((tmp_path / "out/selftrain.json").read_text())["pseudo"]["labels"] == "hard"
    with pytest.raises(SystemExit):
        main(["selftrain", *words, "--rounds", "0"])
    assert "--rounds is 0: it must be at least 1" in capsys.readouterr().err
