"""From any format to any other through the command line, and what is refused."""

from pathlib import Path

import pytest
import torch

import vitreous
from vitreous.cli import main
from vitreous.convert import convert
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.trained import Trained
from vitreous.weights import formats
from vitreous.weights.card import Card

MODEL = ViTSettings(picture_px=(32, 32), patch=16, width=128, depth=2, heads=2)
CLASSES = tuple("abc")


@pytest.fixture
def start(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    task = ClassifySettings().build(MODEL.build(), CLASSES)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    preprocessing = Preprocessing(size_px=(32, 32), crop="squash")
    card = Card(model=MODEL, task=ClassifySettings(), classes=CLASSES, preprocessing=preprocessing)
    Trained(card, task.state_dict(), "made").save(tmp_path / "start")
    return tmp_path / "start"


def logits(where: Path | str, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return vitreous.load(where).task().double().predict(images)


@pytest.mark.parametrize("to", ["timm", "transformers-vit", "torchvision"])
def test_there_and_back_through_the_command_line(to, start, tmp_path, capsys):
    main(["convert", str(start), str(tmp_path / "there"), "--to", to])
    assert "read back bit for bit" in capsys.readouterr().out
    main(["convert", str(tmp_path / "there"), str(tmp_path / "back")])
    assert vitreous.load(tmp_path / "there").format == to
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = logits(start, images)
    for where in ("there", "back"):
        torch.testing.assert_close(logits(tmp_path / where, images), expected, rtol=1e-12, atol=1e-12)


def test_a_single_file(start, tmp_path):
    main(["convert", str(start), str(tmp_path / "one.npz"), "--to", "google"])
    found = vitreous.load(tmp_path / "one.npz")
    assert found.format == "google"
    assert torch.equal(found.weights["encoder.norm.weight"], vitreous.load(start).weights["encoder.norm.weight"])


def test_another_size_and_patch_on_the_way(start, tmp_path):
    main(["convert", str(start), str(tmp_path / "larger"), "--picture-px", "64"])
    larger = vitreous.load(tmp_path / "larger")
    assert larger.card.model.picture_px == larger.card.preprocessing.size_px == (64, 64)
    assert larger.task().predict(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    main(["convert", str(start), str(tmp_path / "finer"), "--patch", "8"])
    assert vitreous.load(tmp_path / "finer").card.model.picture_px == (16, 16)


def test_a_mismatch_says_what_the_file_is(start, tmp_path):
    from safetensors.torch import load_file, save_file

    main(["convert", str(start), str(tmp_path / "x"), "--to", "torchvision"])
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    del tensors["heads.head.bias"]
    save_file(tensors | {"stranger": torch.zeros(1)}, tmp_path / "x" / "model.safetensors")
    with pytest.raises(UserError, match=r"this is a ViT of width 128, depth 2.*missing.*not part of it \(stranger\)"):
        vitreous.load(tmp_path / "x")
    report = vitreous.load(tmp_path / "x", strict=False).report
    assert report.missing == ["heads.head.bias"]
    assert report.unused == ["stranger"]


def test_a_file_that_could_be_another_model_is_not_left(start, tmp_path):
    """A folder has a config.json; a single file of torchvision's does not tell how many heads there are."""
    with pytest.raises(UserError, match="how many heads"):
        convert(str(start), tmp_path / "x.safetensors", "torchvision")
    assert not (tmp_path / "x.safetensors").exists()


def test_what_was_assumed_is_said(start, tmp_path):
    convert(str(start), tmp_path / "one.npz", "google")
    assert "note: an npz tells neither the GELU" in convert(str(tmp_path / "one.npz"), tmp_path / "back")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{start}", "{tmp}/out", "--to", "tim"], "there is no format 'tim'. Did you mean timm"),
        (["{start}", "{start}"], "already there"),
        (["{tmp}/nothing", "{tmp}/out"], "no such run, file or folder of weights"),
        (["{start}", "{tmp}/out.npz", "--to", "timm"], "is written as .safetensors"),
    ],
)
def test_refusals_are_one_line(words, message, start, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["convert", *(word.format(start=start, tmp=tmp_path) for word in words)])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_the_page_about_weights_names_every_format():
    page = (Path(__file__).parents[1] / "docs" / "WEIGHTS.md").read_text().partition("## The others")[2]
    table = {name.strip() for row in page.splitlines() if row.startswith("| ") for name in row.split("|")[1].split(",")}
    assert set(formats.formats()) <= table
