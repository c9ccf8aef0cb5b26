"""The command line, in this process where that is enough; every message is one line, and none is a traceback."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.cli import VERBS, dotted, main, separated
from vitreous.errors import UserError
from vitreous.recipes import RECIPES
from vitreous.settings import load
from vitreous.verbs import DEVICES
from vitreous.weights.trained import Trained

NOWHERE = ["--data.where", "nowhere", "--out", "/tmp/never"]  # a mistake that is found later
TINY = [
    *("--data.train_limit", "200", "--data.val_fraction", "0.02", "--training.batch_size", "50"),
    *("--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--training.steps", "6"),
]


def vitreous(capsys, *words):
    """What a command prints, its errors, and its exit code."""
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        code = end.code or 0
    printed = capsys.readouterr()
    return printed.out, printed.err, code


def refused(capsys, *words):
    out, errors, code = vitreous(capsys, *words)
    assert code == 2
    assert out == ""
    assert errors.startswith("vitreous: ")
    assert errors.count("\n") == 1
    return errors


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    main(["train", "fashion_vit", *TINY, "--out", str(out)])
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of two classes, of several sizes."""
    top = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number, name in enumerate(("dark", "light")):
        (top / name).mkdir()
        for index in range(30):
            size = (30 + index % 3, 34, 3)
            level = rng.integers(0, 120, size, dtype=np.uint8) + np.uint8(120 * number)
            Image.fromarray(level).save(top / name / f"{index}.png")
    return top


# ---- help


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS), []])
def test_help_needs_no_torch(words):
    code = f"""
import sys
from vitreous.cli import main
try:
    main({words!r})
except SystemExit as end:
    assert not end.code
heavy = {{"torch", "numpy", "rich", "PIL", "pyarrow"}} & set(sys.modules)
assert not heavy, heavy
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: vitreous" if words != ["--version"] else "vitreous 0.")


def test_help_names_every_verb(capsys):
    out, _, _ = vitreous(capsys, "--help")
    assert all(f"\n  {verb} " in out for verb in VERBS)


def test_list(capsys):
    out, _, code = vitreous(capsys, "list")
    assert code == 0
    assert all(name in out for name in (*RECIPES, "vit_b16", "bit_r50x1", "fashion", "hf:NAME"))
    assert "fashion_vit" not in vitreous(capsys, "list", "models")[0]


def test_help_of_a_recipe_shows_every_field_with_its_help(capsys):
    out, _, code = vitreous(capsys, "train", "fashion_vit", "--help", "--optimizer.kind", "SGD")
    assert code == 0
    assert "Command:  vitreous train fashion_vit" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("--")}
    assert "one of AdamW, SGD, Muon" in lines["--optimizer.kind"]
    assert "0.9" in lines["--optimizer.momentum"]
    assert "28,28" in lines["--model.picture_px"]
    assert "height and width of the pictures" in lines["--model.picture_px"]
    assert "passes over the training data" in lines["--training.epochs"]
    assert "to try, scored on the held-out part" in lines["--rates"]
    assert "28.0" in lines["--epochs"]


def test_help_of_a_recipe_whose_start_is_not_there(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, _, code = vitreous(capsys, "train", "cifar10_finetune", "--help")
    assert code == 0 and "--picture_px" in out and "runs/cifar10_vit: no such run" in out
    _, errors, code = vitreous(capsys, "train", "cifar10_finetune", "--start", "absent", "--help")
    assert code == 2 and "absent: no such run" in errors


def test_help_of_a_recipe_that_needs_arguments(capsys):
    out, _, code = vitreous(capsys, "train", "paper_finetune", "--help")
    assert code == 0
    assert "--start       needed" in out
    assert "one of imagenet, cifar, pets, flowers" in out


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "Did you mean train or selftrain?"),
        (["--verison"], "Did you mean --version?"),
        (["list", "recipe"], "'recipe' is not one of recipes, models"),
        (["list", "recipe"], "Did you mean recipes? `vitreous list --help`"),
        (["fit", "x", "--minutes", "abc"], "--minutes: 'abc' is not a number. `vitreous fit --help`"),
        (["serve", "x", "--port", "8.5"], "--port: '8.5' is not a whole number"),
        (["serve", "x", "--port"], "vitreous: --port: expected one argument"),
        (["train"], "train needs a recipe"),
        (["train", "fashon_vit"], "Did you mean fashion_vit"),
        (["train", "fashion_vit", "more"], "does not take more"),
        (["train", "fashion_vit", "--optimizer.rl", "1"], "Did you mean --optimizer.lr"),
        (["train", "fashion_vit", "--epoch", "1"], "Did you mean --training.epochs"),
        (["study", "positions", "fashion", "--minuts", "1"], "does not take --minuts. Did you mean --minutes"),
        (["train", "fashion_vit", "--lr", "1"], "Did you mean --optimizer.lr?"),
        (["train", "fashion_vit", "--optimizer.lr", "fast"], "--optimizer.lr: 'fast' is not float"),
        (["train", "fashion_vit", "--optimizer.lr"], "--optimizer.lr needs a value"),
        (["train", "fashion_vit", "--training.memory.shard", "maybe"], "'maybe' is not one of auto, true, false"),
        (["train", "fashion_vit", "--optimizer.kind", "Mun"], "Did you mean Muon?"),
        (["train", "fashion_vit", "--schedule.decay", "cosin"], "Did you mean cosine?"),
        (["train", "fashion_vit", "--optimizer", "SGD"], "such as --optimizer.kind Muon"),
        (["train", "fashion_vit", "--model.heads", "5", "--out", "/tmp/never"], "a multiple of the heads"),
        (["train", "fashion_vit", "--training.device", "cuda", "--out", "/tmp/never"], "no GPU"),
        (["train", "fashion_vit", "--data.where", "fashoin", "--out", "/tmp/never"], "Did you mean fashion?"),
        (["train", "no/such/recipe.json"], "no/such/recipe.json"),
        (["train", "paper_finetune"], "paper_finetune needs --start"),
        (["train", "paper_finetune", "--start", "a", "--data", "b", "--task", "pet"], "Did you mean pets"),
        (["finetune", "no/such/run"], "finetune RUN DATA"),
        (["finetune", "no/such/run", "fashion"], "no/such/run: no such run"),
        (["evaluate", "no/such/run"], "no/such/run: no such run"),
        (["teach", "cifar10_deit", "--teacher", "no/run", *NOWHERE], "no/run: no such run"),
        (["train", "cifar10_deit", "--teacher", "no/run", *NOWHERE], "no/run: no such run"),
        (["evaluate"], "RUN"),
        (["evaluate", "x", "--spilt", "val"], "Did you mean --split"),
        (["evaluate", "x", "--optimizer.lr", "1"], "does not take --optimizer.lr"),
    ],
)
def test_mistakes_are_named_in_one_line(capsys, tmp_path, words, message):
    if "no GPU" in message and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    words = [str(tmp_path / "never") if word == "/tmp/never" else word for word in words]
    assert message in refused(capsys, *words)


def test_a_mistake_in_a_real_process():
    ended = subprocess.run(
        [sys.executable, "-m", "vitreous", "train", "nothing"], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1


def test_dotted_names():
    assert dotted(["--a.b=1", "--c-d.e-f", "-1", "--g=x=y"]) == {"a.b": "1", "c_d.e_f": "-1", "g": "x=y"}
    for wrong in (["a"], ["--a"], ["--a", "--b", "1"]):
        with pytest.raises(UserError):
            dotted(wrong)


def test_settings_may_stand_anywhere():
    words = ["finetune", "--training.steps", "5", "RUN", "--out", "x", "--a=b", "DATA", "--help"]
    assert separated(words, ["--out", "--help"]) == (
        ["finetune", "RUN", "--out", "x", "DATA", "--help"],
        ["--training.steps", "5", "--a=b"],
    )


# ---- work


def test_train_leaves_a_run(run):
    names = {path.name for path in run.iterdir()}
    assert {"recipe.json", "environment.json", "metrics.jsonl", "results.json", "checkpoints", "model"} <= names
    results = json.loads((run / "results.json").read_text())
    assert results["test"]["pictures"] == 2000
    assert results["steps"] == 6


def test_a_run_of_a_later_version_is_refused_in_one_line(capsys, run, tmp_path):
    recipe = json.loads((run / "recipe.json").read_text())
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"format": recipe["format"] + 1, "unheard": "of"}))
    assert "recipe.json: written by a later version" in refused(capsys, "train", tmp_path / "recipe.json")


def test_train_by_a_recipe_file(capsys, run, tmp_path):
    out, _, code = vitreous(
        capsys, "train", run / "recipe.json", "--training.steps=5", "--training.log-every-steps", "1", "--out", tmp_path
    )
    assert code == 0
    assert "test  accuracy" in out
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("list", "convert")])
def test_quiet_and_device_are_the_same_everywhere(verb, capsys):
    out, _, _ = vitreous(capsys, verb, "--help")
    assert "--quiet" in out
    assert verb in ("export", "demo") or f"--device {{{','.join(DEVICES)}}}" in out


def test_quiet_leaves_results_alone_and_device_is_a_setting(capsys, run, tmp_path):
    words = ["train", run / "recipe.json", "--device", "cpu", "--quiet", "--rates", "0.001,0.002"]
    out, errors, code = vitreous(capsys, *words, "--training.steps", "2", "--out", tmp_path / "quiet")
    assert code == 0 and errors == ""
    assert [line.split()[0] for line in out.splitlines()] == ["test", "model"]  # nothing of the rates that were tried
    assert json.loads((tmp_path / "quiet/recipe.json").read_text())["training"]["device"] == "cpu"
    again, _, _ = vitreous(capsys, *words, "--training.steps", "2", "--out", tmp_path / "quiet")
    assert again == out  # without a word that it has finished


def test_evaluate(capsys, run):
    expected = json.loads((run / "results.json").read_text())
    for words, part in ((["evaluate", run], "test"), (["evaluate", run, "--split", "val"], "val")):
        out, _, code = vitreous(capsys, *words, "--json")
        assert code == 0
        scores = json.loads(out)["evaluation"]["scores"]
        assert scores["top1"]["value"] == pytest.approx(expected[part]["accuracy"], abs=1e-6)
        assert scores["pictures"] == expected[part]["pictures"]
    out, _, _ = vitreous(capsys, "evaluate", run, "fashion")
    assert f"{100 * expected['test']['accuracy']:.2f} % (" in out


def test_evaluate_draws_figures(capsys, run, tmp_path):
    out, _, code = vitreous(capsys, "evaluate", run, "--split", "val", "--figures", tmp_path / "drawn")
    assert code == 0
    for name in ("per_class", "confusion", "reliability", "abstention"):
        assert (tmp_path / f"drawn/{name}.png").stat().st_size > 1000
        assert f"{name}.png" in out


def test_evaluate_on_data_of_other_classes(capsys, run, folder):
    assert "'dark'" in refused(capsys, "evaluate", run, folder)


def test_evaluate_a_folder_of_weights_needs_data(capsys, run):
    assert "name the data" in refused(capsys, "evaluate", run / "model")
    out, _, _ = vitreous(capsys, "evaluate", run / "model", "fashion", "--json")
    assert json.loads(out)["evaluation"]["scores"]["pictures"] == 2000


def test_finetune_at_a_larger_size_with_the_best_of_two_rates(capsys, run, folder, tmp_path):
    words = ["finetune", run, folder, "--rates", "0.00001,0.05", "--training.steps", "4", "--training.batch_size", "40"]
    out, errors, code = vitreous(capsys, *words, "--out", tmp_path / "tuned", "--data.val_fraction", "0.2")
    assert code == 0, errors
    assert "learning rate 1e-05:" in out
    results = json.loads((tmp_path / "tuned/results.json").read_text())
    held_out = results["held_out_scores"]
    assert held_out.keys() == {"1e-05", "0.05"}
    assert held_out[f"{results['rate']:g}"] == max(held_out.values())
    assert "val" not in results  # the final run trains on all of train
    assert results["test"]["pictures"] == 6
    trial = json.loads((tmp_path / "tuned/rate-0.05/results.json").read_text())
    assert "test" not in trial  # which is read once
    assert trial["val"]["pictures"] == pytest.approx(0.2 * 54, abs=1)
    tuned, start = Trained.load(tmp_path / "tuned").card, Trained.load(run).card
    assert start.model.picture_px == (28, 28)
    assert tuned.model.picture_px == (49, 49)  # 12/7 as large, in whole patches
    assert tuned.classes == ("dark", "light")
    again, _, _ = vitreous(capsys, *words, "--out", tmp_path / "tuned", "--data.val_fraction", "0.2")
    assert "has finished" in again


def test_finetuning_on_few_pictures_takes_a_batch_that_fits(capsys, run, folder, tmp_path):
    told, errors, code = vitreous(capsys, "finetune", run, folder, "--training.steps", "1", "--out", tmp_path / "few")
    assert code == 0, errors
    assert "batch_size 512 becomes 4: there are 49 pictures to train on" in told
    assert json.loads((tmp_path / "few/results.json").read_text())["batch_size"] == 4
    again, errors, code = vitreous(capsys, "finetune", run, folder, "--training.steps", "1", "--out", tmp_path / "few")
    assert code == 0 and "has finished" in again


def test_finetuning_starts_from_resized_positions_and_a_head_of_zeros(run):
    from vitreous.jobs.build import build_objective
    from vitreous.recipes import finetune_recipe

    recipe = finetune_recipe(str(run), "fashion", {})
    task = build_objective(recipe, ("a", "b", "c"))
    assert task.encoder.grid == (7, 7)
    assert task.head.weight.shape == (3, 16)
    assert not task.head.weight.any()
    start = Trained.load(run).encoder()
    start.resize((49, 49))
    for (name, ours), theirs in zip(task.encoder.named_parameters(), start.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_finetune_help_shows_the_settings(capsys, run):
    out, _, code = vitreous(capsys, "finetune", run, "fashion", "--help")
    assert code == 0
    assert "49,49" in out


def test_rates_need_something_to_choose_on(capsys, run, tmp_path):
    words = ["finetune", run, "fashion", "--rates", "0.1,0.2", "--data.val_fraction", "0", "--out", tmp_path]
    assert "held-out" in refused(capsys, *words)


def test_the_paper_s_finetuning_of_a_run(run):
    from vitreous.recipes import find_recipe

    recipe = find_recipe("paper_finetune", {"start": str(run), "data": "fashion", "task": "pets", "picture_px": "45"})
    assert recipe.model.picture_px == (42, 42)  # whole patches of 7
    assert recipe.rates == (0.001, 0.003, 0.01, 0.03)
    assert recipe.training.steps == 500


# ---- Python


def test_from_python_without_the_command_line(run, tmp_path, monkeypatch):
    import vitreous
    from vitreous.recipes.recipe import Recipe

    model = vitreous.create_model("vit_ti16", num_classes=10, picture_px=32)
    assert model.predict(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 10)
    monkeypatch.chdir(tmp_path)
    results = vitreous.train(load(Recipe, run / "recipe.json"))
    assert results["test"] == json.loads((run / "results.json").read_text())["test"]
    assert vitreous.evaluate("runs/fashion_vit").evaluation.scores.top1.value == results["test"]["accuracy"]
    assert vitreous.training.loop.Loop  # the folder is still there under the same name
