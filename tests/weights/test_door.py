"""What a file says of itself is compared with its tensors before anything is built or read."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.segment import SegmentSettings
from vitreous.weights import formats, own
from vitreous.weights.card import Card
from vitreous.weights.door import check_sizes
from vitreous.weights.trained import Trained

MODEL = ViTSettings.of(picture_px=(8, 8), patch=4, width=64, depth=1, heads=1, mlp_width=256)
CLASSES = ("0", "1", "2")
PREPROCESSING = Preprocessing(size_px=(8, 8), crop="squash", crop_fraction=1.0, skip_fitting=False)
DINO = MODEL.changed(layer_scale=1.0, resizing="bicubic")
BEIT = MODEL.changed(attention_bias="no-key", positions="bias", layer_scale=0.1, pool="mean", pool_norm="after")
CLIP = MODEL.changed(patch_bias=False, pre_norm=True, pool_norm="after", gelu="quick", projection=24, norm_epsilon=1e-5)

CASES = {
    "google": (MODEL.changed(gelu="tanh"), "tanh"),
    "timm": (MODEL, "linear"),
    "torchvision": (MODEL, "linear"),
    "transformers-vit": (MODEL.changed(norm_epsilon=1e-12), "linear"),
    "transformers-deit": (replace(MODEL, num_prefix=2), "distilled"),
    "transformers-dinov2": (DINO, "class-and-mean"),
    "transformers-beit": (BEIT, "linear"),
    "transformers-clip": (CLIP, None),
    "clip": (CLIP, None),
    "dino": (MODEL, None),
}


def card_of(model, head):
    task = None if head is None else ClassifySettings(head=head)
    return Card(model=model, task=task, classes=CLASSES if head else (), preprocessing=PREPROCESSING)


def weights_of(card):
    torch.manual_seed(0)
    encoder = card.model.build()
    return (
        encoder.state_dict(prefix="encoder.") if card.task is None else card.task.build(encoder, CLASSES).state_dict()
    )


def given_of(name):
    card = card_of(*CASES[name])
    return formats.write(card, weights_of(card), formats.named(name))


def read(given):
    return formats.read(given, formats.recognised(given), (8, 8))


def refused(action):
    with pytest.raises(UserError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.fixture
def ours(tmp_path):
    """Saves a card (as JSON that a test may change) with the weights of MODEL."""

    def save(**changes):
        card = card_of(MODEL, "linear")
        Trained(card, weights_of(card), "here").save(tmp_path / "good")
        document = json.loads((tmp_path / "good" / "model.json").read_text())
        for path, value in changes.items():
            part = document
            *outer, last = path.split("__")
            for name in outer:
                part = part[name]
            part[last] = value
        weights = own.load_model(tmp_path / "good")[0]
        own.save_model(tmp_path / "changed", weights, document)
        return tmp_path / "changed"

    return save


def transformers_folder(folder, tensors=None, processor=None, **config):
    given = given_of("transformers-vit")
    folder.mkdir()
    save_file(
        {name: value.contiguous() for name, value in (tensors or given.tensors).items()}, folder / "model.safetensors"
    )
    for name, document in given.documents.items():
        changes = config if name == "config.json" else processor or {}
        (folder / name).write_text(json.dumps({**document, **changes}))
    return folder


# ---- Tensors


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_of_every_format_has_the_shape_of_its_model(name):
    given = given_of(name)
    assert read(given)[2].is_exact
    for tensor, value in given.tensors.items():
        # Kernels of another height or width, and a narrower projection, make a model too.
        shorter = value[1:] if tensor.endswith(("embed.proj.weight", "visual.proj")) else value[..., 1:]
        message = refused(lambda t=tensor, s=shorter: read(replace(given, tensors={**given.tensors, t: s})))
        assert name in message


def test_a_hidden_layer_of_another_width_is_refused():
    given = given_of("google")
    other = {
        "pre_logits/kernel": torch.zeros(64, 32),
        "pre_logits/bias": torch.zeros(32),
        "head/kernel": torch.zeros(32, 3),
    }
    message = refused(lambda: read(replace(given, tensors={**given.tensors, **other})))
    assert "pre_logits/" in message or "head/kernel" in message


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (DetectSettings(encoder_depth=10**9), "encoder_depth is 1000000000"),
        (DetectSettings(queries=10**12), "queries is 1000000000000"),
        (SegmentSettings(depth=10**9), "depth is 1000000000"),
    ],
)
def test_a_task_asks_for_no_more_than_the_file_holds(task, said):
    card = card_of(MODEL, "linear")
    with pytest.raises(UserError, match=f"{said}, but the file holds only"):
        check_sizes(replace(card, task=task), weights_of(card), "here")


def test_tensors_that_are_missing_or_have_no_place(ours, tmp_path):
    folder = ours()
    weights, document = own.load_model(folder)
    short = {name: value for name, value in weights.items() if name != "head.bias"}
    own.save_model(tmp_path / "short", short, document)
    assert "the file has no head.bias" in refused(lambda: Trained.load(tmp_path / "short"))
    own.save_model(tmp_path / "long", {**weights, "head.more": torch.zeros(1)}, document)
    assert "has no place for head.more" in refused(lambda: Trained.load(tmp_path / "long"))
    own.save_model(tmp_path / "thin", {**weights, "encoder.norm.bias": torch.zeros(63)}, document)
    assert "encoder.norm.bias has the shape (63,)" in refused(lambda: Trained.load(tmp_path / "thin"))
    own.save_model(tmp_path / "nan", {**weights, "head.bias": torch.full((3,), torch.nan)}, document)
    assert "head.bias holds values that are not finite" in refused(lambda: Trained.load(tmp_path / "nan"))


def test_nothing_is_read_before_the_shapes_are_right(tmp_path, monkeypatch):
    given = given_of("transformers-vit")
    wrong = {**given.tensors, "vit.layernorm.bias": torch.zeros(63)}
    folder = transformers_folder(tmp_path / "wrong", wrong)
    monkeypatch.setattr("vitreous.weights.containers.SafetensorsFile._read", lambda *_: pytest.fail("a value was read"))
    assert "vit.layernorm.bias has the shape (63,)" in refused(lambda: Trained.load(folder))


# ---- Types of numbers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32(dtype, tmp_path):
    given = given_of("transformers-vit")
    rounded = {name: value.to(torch.bfloat16).to(torch.float16).float() for name, value in given.tensors.items()}
    expected = Trained.load(transformers_folder(tmp_path / "float32", rounded)).task()
    found = Trained.load(
        transformers_folder(tmp_path / "other", {name: value.to(dtype) for name, value in rounded.items()})
    ).task()
    assert {value.dtype for value in found.state_dict().values()} == {torch.float32}
    pictures = torch.randn(2, 3, 8, 8)
    assert torch.equal(found.predict(pictures).logits, expected.predict(pictures).logits)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int64, torch.bool])
def test_other_numbers_are_refused(dtype, tmp_path, ours):
    kind = str(dtype).removeprefix("torch.")
    tensors = given_of("transformers-vit").tensors
    name = "vit.layernorm.weight"
    folder = transformers_folder(tmp_path / "foreign", {**tensors, name: tensors[name].to(dtype)})
    assert f"{name} holds {kind} numbers; save the weights as float32" in refused(lambda: Trained.load(folder))
    weights, document = own.load_model(ours())
    own.save_model(tmp_path / "ours", {**weights, "head.bias": weights["head.bias"].to(dtype)}, document)
    assert f"head.bias holds {kind} numbers" in refused(lambda: Trained.load(tmp_path / "ours"))


def test_float64_that_float32_would_round_is_refused(tmp_path):
    tensors = given_of("transformers-vit").tensors
    finer = {**tensors, "classifier.bias": torch.full((3,), 0.1, dtype=torch.float64)}
    message = refused(lambda: Trained.load(transformers_folder(tmp_path / "finer", finer)))
    assert "float64 numbers that float32 would round; save it as float32" in message


# ---- Sizes

LONG = "x" * 500_000


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model__depth", 10**9, "depth is 1000000000, but the file holds only 20 tensors"),
        ("model__depth", 20, "the file has no encoder.blocks.1."),
        ("model__width", 10**9, "width is 1000000000, but the file holds only"),
        ("model__block__mlp_width", 10**18, "mlp_width is 1000000000000000000, but the file holds only"),
        ("model__num_registers", 10**9, "num_registers"),
        ("model__num_prefix", -1, "num_prefix"),
        ("model__heads", 0, "heads 0"),
        ("model__patch", 0, "patch"),
        ("model__patch", 40_000, "patch"),
        ("model__picture_px", [10**9, 10**9], "(1000000000, 1000000000): each side must be from 1 to 8192 px"),
        ("model__picture_px", [8192, 8], "encoder.positions.tables.0.table has the shape (5, 64)"),
        ("model__block__norm_epsilon", -1e-6, "norm_epsilon is -1e-06"),
        ("model__block__norm_epsilon", 0.0, "norm_epsilon is 0.0"),
        ("model__dropout", 1.5, "dropout"),
        ("model__pool", LONG, "is not one of class, mean"),
        ("model__pool", ["class"], "is not one of class, mean"),
        (f"model__{LONG}", 1, "no field"),
        ("model__kind", LONG, "is not one of ViT"),
        ("classes", ["a", "b"], "head.bias has the shape (3,)"),
        ("temperature", 0.0, "temperature"),
        ("temperature", -1.0, "temperature"),
        ("sets", [[0.9, 2.0]], "sets"),
        ("preprocessing__size_px", [10**9, 10**9], "size_px"),
        ("preprocessing__size_px", [7, 7], "patch"),
        ("preprocessing__size_px", [8192, 8192], "4,194,304 patches; at most 65,536 are read"),
        ("preprocessing__crop_fraction", 5e-324, "crop_fraction"),
        ("preprocessing__mean", ["a", "b", "c"], "mean"),
        ("preprocessing__std", [1.0, 1.0, 0.0], "std"),
    ],
)
def test_what_our_own_cards_may_not_say(ours, field, value, reason):
    assert reason in refused(lambda: Trained.load(ours(**{field: value})))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("num_hidden_layers", 10**9, "depth is 1000000000, but the file holds only 24 tensors"),
        ("num_hidden_layers", True, "num_hidden_layers is True"),
        ("hidden_size", 10**9, "hidden_size"),
        ("intermediate_size", 10**18, "mlp_width is 1000000000000000000, but the file holds only"),
        ("image_size", 10**9, "each side must be from 1 to 8192 px"),
        ("image_size", -8, "image_size is -8"),
        ("image_size", [8, True], "image_size is [8, True]"),
        ("patch_size", 0, "patch_size is 0"),
        ("patch_size", 100_000, "patch_size"),
        ("num_attention_heads", 7, "multiple of the heads"),
        ("num_attention_heads", 10**9, "heads is 1000000000, but the file holds only"),
        ("layer_norm_eps", -1, "layer_norm_eps is -1"),
        ("layer_norm_eps", 0, "norm_epsilon is 0.0"),
        ("layer_norm_eps", "small", "layer_norm_eps is 'small'"),
        ("hidden_dropout_prob", 7, "dropout"),
        ("hidden_act", LONG, "hidden_act is 'xxx"),
        ("hidden_act", ["gelu"], "hidden_act is ['gelu']"),
        ("id2label", {"0": LONG}, "id2label must name the 3 classes"),
    ],
)
def test_what_a_config_may_not_say(tmp_path, field, value, reason):
    folder = transformers_folder(tmp_path / "model", **{field: value})
    assert reason in refused(lambda: Trained.load(folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_mean", ["a", "b", "c"]),
        ("image_mean", [LONG] * 3),
        ("image_mean", {"r": 1}),
        ("image_std", [1, 1]),
        ("image_std", [0, 1, 1]),
        ("size", [8, 8]),
        ("size", LONG),
        ("size", {"height": 10**9, "width": 8}),
        ("size", {"height": True, "width": 8}),
        ("resample", [2]),
        ("rescale_factor", "1/255"),
        ("image_processor_type", LONG),
    ],
)
def test_what_a_processor_may_not_say(tmp_path, field, value):
    folder = transformers_folder(tmp_path / "model", processor={field: value})
    message = refused(lambda: Trained.load(folder))
    assert field.removeprefix("image_") in message or "height" in message


def test_a_tensor_without_values_cannot_count_classes(tmp_path):
    folder = tmp_path / "model"
    transformers_folder(folder)
    header = {"classifier.weight": {"dtype": "F32", "shape": [10**9, 0], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "classifier.weight has an invalid shape or offset" in refused(lambda: Trained.load(folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("img_size", "large"),
        ("num_heads", 0),
        ("num_heads", 10**9),
        ("mean", ["a", "b", "c"]),
        ("mean", LONG),
        ("crop_pct", 1e-300),
        ("crop_mode", LONG),
        ("interpolation", [LONG]),
        ("norm_epsilon", -1),
    ],
)
def test_what_timms_config_may_not_say(field, value):
    given = given_of("timm")
    config = dict(given.documents["config.json"])
    for part in ("model_args", "pretrained_cfg"):
        config[part] = {name: value if name == field else old for name, old in config[part].items()}
    config |= {field: value} if field in (*config, "norm_epsilon") else {}
    refused(lambda: read(replace(given, documents={"config.json": config})))


def test_integers_do_not_hide_among_floats():
    given = given_of("transformers-vit")
    name = next(name for name in given.tensors if name.endswith("attention.key.weight"))
    mixed = {**given.tensors, name: given.tensors[name].to(torch.int8)}
    assert "mix types of numbers" in refused(lambda: read(replace(given, tensors=mixed)))
