"""From any format to any other through the command line: the same function, or a refusal that leaves nothing."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitreous
from vitreous.cli import main
from vitreous.conversion.convert import convert
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights import carrying, formats
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.folding import Folded
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

MODEL = ViTSettings(picture_px=(32, 32), patch=16, width=128, depth=2, heads=2)
CLASSES = ("cat", "dog", "tree frog")
MEAN, STD = (0.48, 0.45, 0.4), (0.23, 0.22, 0.3)


def made(folder: Path, model=MODEL, head: str | None = "linear", fusion="logits", **changes) -> Path:
    """A model of ours with random weights; `changes` are of its card."""
    torch.manual_seed(0)
    task = ClassifySettings(head=head or "linear", fusion=fusion)
    built = task.build(model.build(), CLASSES)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    weights = {n: t for n, t in built.state_dict().items() if head or n.startswith("encoder.")}
    preprocessing = Preprocessing(size_px=model.picture_px, crop="squash")
    card = Card(model=model, task=task if head else None, classes=CLASSES if head else (), preprocessing=preprocessing)
    Trained(replace(card, **changes), weights, "made").save(folder)
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return made(tmp_path / "start")


def pictures(size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    return torch.randint(0, 256, (3, 3, *size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@torch.no_grad()
def probabilities(where: Path | str) -> torch.Tensor:
    """From pixels to the end, by what is known of the model where it lies."""
    trained = vitreous.load(where)
    images = trained.card.preprocessing.normalised(pictures(trained.card.preprocessing.size_px))
    logits = trained.task().double().predict(images.double()).logits
    return (logits / trained.card.temperature).softmax(dim=1)


@torch.no_grad()
def by_timm(folder: Path) -> torch.Tensor:
    """As timm's users open it, and nothing of ours."""
    module = imported("timm").create_model(f"local-dir:{folder}", pretrained=True).double().eval()
    known = module.pretrained_cfg
    mean, std = (torch.tensor(known[name], dtype=torch.float64)[:, None, None] for name in ("mean", "std"))
    return module((pictures(known["input_size"][1:]).double() / 255 - mean) / std).softmax(dim=1)


# ---- The same function


@pytest.mark.parametrize("to", ["timm", "transformers-vit", "torchvision"])
def test_there_and_back_through_the_command_line(to, start, tmp_path, capsys):
    main(["convert", str(start), str(tmp_path / "there"), "--to", to])
    assert "read back bit for bit" in capsys.readouterr().out
    main(["convert", str(tmp_path / "there"), str(tmp_path / "back")])
    assert vitreous.load(tmp_path / "there").format == to
    for where in ("there", "back"):
        torch.testing.assert_close(probabilities(tmp_path / where), probabilities(start), rtol=0, atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-2])
@pytest.mark.parametrize("gelu", ["erf", "quick"])
def test_timm_computes_the_same(epsilon, gelu, tmp_path):
    """timm takes no epsilon from a config: it has 1e-6, or 1e-5 in what is called CLIP."""
    pytest.importorskip("timm")
    start = made(
        tmp_path / "start",
        MODEL.changed(norm_epsilon=epsilon, gelu=gelu),
        calibration=ClassCalibration(temperature=1.9),
    )
    said = convert(str(start), tmp_path / "out", "timm")
    assert ("epsilon" in said) == (epsilon != 1e-5) and "temperature of 1.9" in said
    torch.testing.assert_close(by_timm(tmp_path / "out"), probabilities(start), rtol=0, atol=1e-6)


@pytest.mark.parametrize("to", ["google", "big-vision", "torchvision", "deit", "transformers-vit"])
def test_what_no_file_can_say_is_in_the_weights_or_in_the_notes(to, tmp_path):
    gelu = "tanh" if to in ("google", "big-vision") else "erf"
    preprocessing = Preprocessing(size_px=(32, 32), crop="centre", interpolation="bicubic", mean=MEAN, std=STD)
    start = made(
        tmp_path / "start",
        MODEL.changed(norm_epsilon=1e-2, gelu=gelu),
        calibration=ClassCalibration(temperature=0.6, sets=((0.9, 0.0321),)),
        preprocessing=preprocessing,
    )
    out = tmp_path / ("out.npz" if gelu == "tanh" else "out")
    said = convert(str(start), out, to)
    notes = (tmp_path / "out.npz.NOTES.txt" if gelu == "tanh" else out / "NOTES.txt").read_text()
    torch.testing.assert_close(probabilities(out), probabilities(start), rtol=0, atol=1e-6)
    for text in (said, notes):
        assert "temperature of 0.6" in text and "0.0321" in text
        assert ("mean (0.48, 0.45, 0.4) and std" in text) == (to != "transformers-vit")
        assert ("the names of its 3 classes" in text) == (to != "transformers-vit")
        assert ("preprocessed differently there: squashed, not cropped to the centre 0.875" in text) == (gelu == "tanh")
        assert "already have the right size are resized and cropped too" in text or gelu == "tanh"
    assert "2 tree frog" in notes


def test_googles_hybrids_are_timms(tmp_path):
    """The convolutions' epsilons differ: what one has is folded into the other's filters."""
    pytest.importorskip("timm")
    stem = ResNetStem(depths=(), norm_epsilon=1e-6, conv_epsilon=1e-5, standardisation="deviation")
    start = made(tmp_path / "start", MODEL.changed(picture_px=(64, 64), patch=8, stem=stem, gelu="tanh"))
    trained = vitreous.load(start)
    root = "encoder.stem.trunk.levels.0.0.conv.weight"
    replace(trained, weights={**trained.weights, root: trained.weights[root] * 1e-3}).save(tmp_path / "small")
    assert "standardised convolutions" in convert(str(tmp_path / "small"), tmp_path / "out", "timm")
    torch.testing.assert_close(by_timm(tmp_path / "out"), probabilities(tmp_path / "small"), rtol=0, atol=1e-5)
    convert(str(tmp_path / "out"), tmp_path / "back.npz", "google")
    torch.testing.assert_close(probabilities(tmp_path / "back.npz"), by_timm(tmp_path / "out"), rtol=0, atol=1e-5)


def test_a_bit_is_googles_too(tmp_path):
    model = ResNetSettings(picture_px=(32, 32), depths=(1, 1), base_width=32, conv_epsilon=1e-8)
    start = made(tmp_path / "start", model, calibration=ClassCalibration(temperature=1.3))
    said = convert(str(start), tmp_path / "bit.npz", "google-bit")
    assert "epsilon of the standardised convolutions is folded" in said and "224 x 224 px, not 32 x 32" in said
    assert vitreous.load(tmp_path / "bit.npz", picture_px=32).card.model.conv_epsilon == 1e-10
    with pytest.raises(UserError, match=r"no architecture .* can hold it: vitreous, google-bit\)"):
        convert(str(start), tmp_path / "out", "timm")


def test_a_single_file(tmp_path):
    start = made(tmp_path / "start", MODEL.changed(gelu="tanh"))
    main(["convert", str(start), str(tmp_path / "one.npz"), "--to", "google"])
    found = vitreous.load(tmp_path / "one.npz")
    assert found.format == "google"
    assert torch.equal(found.weights["encoder.norm.weight"], vitreous.load(start).weights["encoder.norm.weight"])


def test_a_file_alone_tells_its_config_in_the_notes(tmp_path):
    start = made(tmp_path / "start", replace(MODEL, width=192, depth=12, heads=3))
    assert "a single file has no config.json" in convert(str(start), tmp_path / "one.safetensors", "timm")
    text = (tmp_path / "one.safetensors.NOTES.txt").read_text()
    config = json.loads(text.split("\nconfig.json:\n")[1])
    assert config["model_args"]["num_heads"] == 3


def test_timm_replaces_the_head_of_what_we_write(tmp_path):
    timm = pytest.importorskip("timm")
    convert(str(made(tmp_path / "start")), tmp_path / "out", "timm")
    module = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, num_classes=7)
    assert module(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(module.state_dict()["norm.weight"], written["norm.weight"])


def test_source_and_target_are_compared_on_the_users_pictures(tmp_path):
    pytest.importorskip("timm")
    from PIL import Image

    start = made(tmp_path / "start")
    Image.fromarray(pictures((40, 50))[0].permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    said = convert(str(start), tmp_path / "out", "timm", verified=True, pictures=[tmp_path / "a.png"])
    assert "source against target, as computed by vit_base_patch16_224 of timm" in said
    assert "2 generated pictures and 1 of yours" in said and "float64" in said
    with pytest.raises(UserError, match=r"b\.png"):
        convert(str(start), tmp_path / "out2", "timm", pictures=[tmp_path / "b.png"])
    assert "pictures were ignored" in convert(str(start), tmp_path / "own", pictures=[tmp_path / "a.png"])


# ---- Another size, another patch, heads that nobody wrote down


def test_another_size_and_patch_on_the_way(start, tmp_path):
    main(["convert", str(start), str(tmp_path / "larger"), "--picture-px", "64"])
    larger = vitreous.load(tmp_path / "larger")
    assert larger.card.model.picture_px == larger.card.preprocessing.size_px == (64, 64)
    assert larger.task().predict(torch.randn(1, 3, 64, 64)).logits.shape == (1, 3)
    main(["convert", str(start), str(tmp_path / "finer"), "--patch", "8"])
    assert vitreous.load(tmp_path / "finer").card.model.picture_px == (16, 16)


@pytest.mark.parametrize("text", ["48x64", "48,64"])
def test_a_size_that_is_no_square(text, start, tmp_path):
    main(["convert", str(start), str(tmp_path / "wide"), "--picture-px", text, "--to", "timm"])
    assert vitreous.load(tmp_path / "wide").card.model.picture_px == (48, 64)


@pytest.mark.parametrize("text", ["0", "48x0", "x48", "48x64x3", "many"])
def test_what_is_no_size(text, start, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["convert", str(start), str(tmp_path / "out"), "--picture-px", text])
    assert "is not a picture size" in capsys.readouterr().err


def test_an_encoder_alone_in_timms_hybrid_layout(tmp_path):
    """Its file tells neither the heads nor how the positions lie; both can be said."""
    model = MODEL.changed(picture_px=(64, 96), patch=8, width=48, stem=ResNetStem(depths=()), norm_epsilon=1e-6)
    start = made(tmp_path / "start", model, head=None)
    convert(str(start), tmp_path / "folder", "timm")
    tensors = load_file(tmp_path / "folder" / "model.safetensors")
    save_file(tensors, tmp_path / "file.safetensors")
    with pytest.raises(UserError, match="do not form a square"):
        convert(str(tmp_path / "file.safetensors"), tmp_path / "out")
    with pytest.raises(UserError, match="--heads N"):
        convert(str(tmp_path / "file.safetensors"), tmp_path / "out", picture_px=(64, 96))
    main(["convert", str(tmp_path / "file.safetensors"), str(tmp_path / "out"), "--heads=2", "--picture-px=64x96"])
    found = vitreous.load(tmp_path / "out").card.model
    assert (found.heads, found.picture_px, found.stem.depths) == (2, (64, 96), ())


# ---- What is refused


@pytest.mark.parametrize(
    ("to", "model", "message"),
    [
        ("google", {"gelu": "quick", "norm_epsilon": 1e-2}, "the tanh GELU, this model the quick one"),
        ("big-vision", {"norm_epsilon": 1e-12}, "the tanh GELU, this model the erf one"),
        ("torchvision", {"gelu": "tanh"}, "the erf GELU, this model the tanh one"),
        ("torchvision", {"channels": 1}, "has channels 3, not 1"),
        ("transformers-dinov2-registers", {"layer_scale": 0.1}, "has register tokens, and this model has none"),
        (
            "transformers-vit",
            {"pool": "mean", "num_prefix": 0},
            "pool is 'mean'.*can hold it: vitreous, timm",
        ),
        ("timm", {"positions_where": "every-layer-shared"}, "positions_where is 'every-layer-shared'"),
        ("timm", {"stem": ResNetStem(depths=(1,)), "patch": 4}, "no architecture with the convolutional part"),
        ("timm", {"pre_norm": True}, "patch_bias and pre_norm are both True"),
        ("beit", {}, "beit has no model whose positions is 'learned'"),
        ("dino", {}, "dino cannot store a linear head"),
        ("deit", {"pre_norm": True}, "deit has no model whose pre_norm is True"),
    ],
)
def test_another_model_is_not_written(to, model, message, tmp_path):
    dino = to.startswith("transformers-dinov2")
    start = made(tmp_path / "start", MODEL.changed(**model), head="class-and-mean" if dino else "linear")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=message) as error:
        convert(str(start), tmp_path / "new" / "folder" / "out", to)
    assert "\n" not in str(error.value) and ".vitreous-" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_approximately(tmp_path):
    start = made(tmp_path / "start", MODEL.changed(gelu="quick", norm_epsilon=1e-2))
    said = convert(str(start), tmp_path / "out.npz", "google", approximate=True)
    notes = (tmp_path / "out.npz.NOTES.txt").read_text()
    for text in (said, notes):
        assert "tanh GELU, this model the quick one" in text and "an epsilon of 1e-06, this model's 0.01" in text
        assert "differ from the source's by" in text
    found, source = vitreous.load(tmp_path / "out.npz"), vitreous.load(start)
    assert all(torch.equal(value, found.weights[name]) for name, value in source.weights.items())
    assert float((probabilities(tmp_path / "out.npz") - probabilities(start)).abs().max()) > 1e-3


def test_two_softmaxes_are_not_the_mean_of_logits(tmp_path):
    start = made(tmp_path / "start", replace(MODEL, num_prefix=2), head="distilled", fusion="softmax")
    with pytest.raises(UserError, match="this model their softmaxes"):
        convert(str(start), tmp_path / "out", "transformers-deit")
    assert "differ from the source's by" in convert(str(start), tmp_path / "out", "transformers-deit", approximate=True)


@pytest.mark.parametrize("installed", [True, False])
def test_outputs_that_differ_are_an_error_whoever_reads_them(installed, tmp_path, monkeypatch):
    """As if folding were wrong: no tensor and no setting tells, the outputs do."""
    pytest.importorskip("timm")
    start = made(tmp_path / "start", calibration=ClassCalibration(temperature=1.5))
    forgetful = lambda folded: Folded(replace(folded.card, calibration=None), folded.weights)  # noqa: E731
    monkeypatch.setattr(carrying, "fold_temperature", forgetful)
    if not installed:
        monkeypatch.setitem(sys.modules, "timm", None)
    reader = "vit_base_patch16_224 of timm" if installed else "our own model"
    with pytest.raises(UserError, match=rf"computed by {reader}.* differ .* by 5\.0e-01"):
        convert(str(start), tmp_path / "out", "timm")
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def test_a_conversion_that_is_broken_off_leaves_nothing(start, tmp_path, monkeypatch):
    def stop(*_words, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("vitreous.conversion.convert.agree", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(str(start), tmp_path / "new" / "out", "timm")
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def test_a_mismatch_says_what_the_file_is(start, tmp_path):
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
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def test_what_was_assumed_is_said(tmp_path):
    start = made(tmp_path / "start", MODEL.changed(gelu="tanh"))
    convert(str(start), tmp_path / "one.npz", "google")
    assert "note: an npz records neither the GELU" in convert(str(tmp_path / "one.npz"), tmp_path / "back")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{start}", "{tmp}/out", "--to", "tim"], "there is no format 'tim'. Did you mean timm"),
        (["{start}", "{start}"], "already exists"),
        (["{tmp}/nothing", "{tmp}/out"], "no such run, file or folder of weights"),
        (["{start}", "{tmp}/out.npz", "--to", "timm"], "is written as .safetensors, or as a folder"),
        (["{start}", "{tmp}/out.pth", "--to", "timm"], "is written as .safetensors, or as a folder"),
        (["{start}", "{tmp}/out.safetensors"], "is written as a folder; choose a name without .safetensors"),
        (["{start}", "{tmp}/out.safetensors", "--to", "transformers-vit"], "needs the config.json of its folder"),
    ],
)
def test_refusals_are_one_line(words, message, start, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["convert", *(word.format(start=start, tmp=tmp_path) for word in words)])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def test_the_page_about_weights_names_every_format():
    page = (Path(__file__).parents[2] / "docs" / "WEIGHTS.md").read_text().partition("## The others")[2]
    table = {name.strip() for row in page.splitlines() if row.startswith("| ") for name in row.split("|")[1].split(",")}
    assert set(formats.formats()) <= table
