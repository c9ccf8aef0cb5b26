import pytest
import torch

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.verbs import listing
from vitreous.weights import shipped as module
from vitreous.weights.card import Card
from vitreous.weights.shipped import ENCODERS, megabytes, shipped
from vitreous.weights.trained import Trained


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two encoders in half precision, and something that is none."""
    monkeypatch.setattr(module, "ENCODERS", tmp_path)
    for name, width in (("vitreous-s", 32), ("vitreous-xs", 16)):
        torch.manual_seed(0)
        model = ViTSettings(picture_px=(16, 16), patch=8, width=width, depth=1, heads=2, pool="mean", num_prefix=0)
        weights = {name: value.half() for name, value in model.build().state_dict(prefix="encoder.").items()}
        card = Card(model=model, preprocessing=Preprocessing(size_px=(16, 16)))
        Trained(card, weights, name).save(tmp_path / name)
    (tmp_path / "__pycache__").mkdir()
    return tmp_path


def test_they_are_found_by_name_wherever_one_is(folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shipped() == ("vitreous-xs", "vitreous-s"), "the smallest first"
    found = Trained.load("vitreous-s", picture_px=32)
    assert found.card.model.width == 32 and found.where == "vitreous-s"
    assert found.encoder()(torch.zeros(1, 3, 32, 32)).pooled.dtype == torch.float32
    with pytest.raises(UserError, match=r"vitreous-m: no such run.* Did you mean vitreous-s or vitreous-xs\?$"):
        Trained.load("vitreous-m")


def test_they_are_listed(folder, capsys):
    listing.run(type("Options", (), {"what": "encoders"}))
    printed = capsys.readouterr().out
    assert f"vitreous-xs  {megabytes('vitreous-xs'):.1f} MB" in printed and "width 32" in printed


def test_a_package_without_them_says_so_by_having_none(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ENCODERS", tmp_path / "nowhere")
    assert shipped() == ()


@pytest.mark.skipif(not shipped(), reason="this copy has no encoders")
@pytest.mark.parametrize("name", shipped())
def test_what_ships_is_small_and_takes_pictures_of_48_to_128_px(name):
    assert megabytes(name) < {"vitreous-s": 13.1, "vitreous-xs": 3.3}[name]
    assert (ENCODERS / name / "manifest.json").is_file()
    for px in (48, 128):
        encoder = Trained.load(name, picture_px=px).encoder().eval()
        with torch.no_grad():
            assert encoder(torch.zeros(1, 3, px, px)).pooled.isfinite().all()
