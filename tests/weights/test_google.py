"""Google's .npz: every array comes back bit by bit, and the logits are those of timm after its own reader."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from peers import assert_close_relative

import vitreous
from vitreous.conversion.convert import convert
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ResNetStem, ViTSettings
from vitreous.weights import google
from vitreous.weights.files import open_weights
from vitreous.weights.formats import read, write
from vitreous.weights.rules import apply_write

FORMATS = {one.name: one for one in google.FORMATS}
VIT = {"width": 48, "depth": 2, "heads": 3, "mlp": 96, "patch": 4, "grid": 4, "classes": 10}


class Maker:
    """Random arrays under published names and shapes."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.arrays = {}

    def add(self, name, *shape, fan=None):
        values = self.random.normal(size=shape) / np.sqrt(fan or 9)
        if name.endswith(("scale", "gamma")):
            values += 0.7
        self.arrays[name] = values.astype(np.float32)

    def norm(self, name, width, names=("scale", "bias")):
        for one in names:
            self.add(f"{name}/{one}", width)

    def vit(self, size, block, positions, has_class=True, hidden=False, grid=None, channels=3, patch=None, depth=None):
        D, p = size["width"], patch or size["patch"]
        h, w = grid or (size["grid"], size["grid"])
        norm1, attention, norm2, mlp = block
        self.add("embedding/kernel", p, p, channels, D, fan=p * p * channels)
        self.add("embedding/bias", D)
        if has_class:
            self.add("cls", 1, 1, D)
        self.add(positions, 1, h * w + int(has_class and positions == google.IN_ENCODER), D)
        for i in range(size["depth"]):
            base = f"Transformer/encoderblock_{i}"
            for norm in (norm1, norm2):
                self.norm(f"{base}/{norm}", D)
            for name in ("query", "key", "value"):
                self.add(f"{base}/{attention}/{name}/kernel", D, size["heads"], D // size["heads"], fan=D)
                self.add(f"{base}/{attention}/{name}/bias", size["heads"], D // size["heads"])
            self.add(f"{base}/{attention}/out/kernel", size["heads"], D // size["heads"], D, fan=D)
            self.add(f"{base}/{attention}/out/bias", D)
            for number, (n, m) in enumerate(((D, size["mlp"]), (size["mlp"], D))):
                self.add(f"{base}/{mlp}/Dense_{number}/kernel", n, m, fan=n)
                self.add(f"{base}/{mlp}/Dense_{number}/bias", m)
        self.norm("Transformer/encoder_norm", D)
        if hidden:
            self.add("pre_logits/kernel", D, D, fan=D)
            self.add("pre_logits/bias", D)
        if size["classes"]:
            self.add("head/kernel", D, size["classes"], fan=D)
            self.add("head/bias", size["classes"])
        return self

    def hybrid(self, depths, width=64):
        self.add("conv_root/kernel", 7, 7, 3, width)
        self.norm("gn_root", width)
        channels = width
        for i, depth in enumerate(depths):
            inner = width * 2**i
            for j in range(depth):
                base = f"block{i + 1}/unit{j + 1}"
                sides = ((1, channels, inner), (3, inner, inner), (1, inner, 4 * inner))
                for number, (k, n, m) in enumerate(sides, start=1):
                    self.add(f"{base}/conv{number}/kernel", k, k, n, m)
                    self.norm(f"{base}/gn{number}", m)
                if j == 0:
                    self.add(f"{base}/conv_proj/kernel", 1, 1, channels, 4 * inner)
                    self.norm(f"{base}/gn_proj", 4 * inner)
                channels = 4 * inner
        return channels

    def bit(self, depths, width=64, classes=10):
        names = ("gamma", "beta")
        self.add("resnet/root_block/standardized_conv2d/kernel", 7, 7, 3, width)
        channels = width
        for i, depth in enumerate(depths):
            inner = width * 2**i
            for j in range(depth):
                base = f"resnet/block{i + 1}/unit{j + 1:02d}"
                sides = ((1, channels, inner), (3, inner, inner), (1, inner, 4 * inner))
                for letter, (k, n, m) in zip("abc", sides, strict=True):
                    self.add(f"{base}/{letter}/standardized_conv2d/kernel", k, k, n, m)
                    self.norm(f"{base}/{letter}/group_norm", n, names)
                if j == 0:
                    self.add(f"{base}/a/proj/standardized_conv2d/kernel", 1, 1, channels, 4 * inner)
                channels = 4 * inner
        self.norm("resnet/group_norm", channels, names)
        self.add("resnet/head/conv2d/kernel", 1, 1, channels, classes, fan=channels)
        self.add("resnet/head/conv2d/bias", classes)
        return self

    def save(self, path, prefix=""):
        np.savez(path, **{prefix + name: array for name, array in self.arrays.items()})
        return path


def ours(path, name, picture_px=None, **changes):
    """A model of ours from a file; `changes` are what timm does otherwise than the published code."""
    given, format = open_weights(path), FORMATS[name]
    assert [one.name for one in google.FORMATS if one.fits(given)] == [name]
    card, weights, report = read(given, format, picture_px)
    assert report.is_exact
    back = write(card, weights, format)
    assert back.tensors.keys() == given.tensors.keys()
    for key, tensor in back.tensors.items():
        assert tensor.shape == given.tensors[key].shape, key
        assert torch.equal(tensor, given.tensors[key]), key
    model = dataclasses.replace(card.model, **changes)
    task = card.task.build(model.build(), card.classes)
    task.load_state_dict(weights)
    return card, task.eval()


def compare(task, peer, size, channels=3):
    images = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    peer.eval()
    with torch.no_grad():
        assert_close_relative(task.predict(images.float()).logits, peer(images.float()), 1e-5)
        assert_close_relative(task.double().predict(images).logits, peer.double()(images), 1e-9)


def timm_vit(**changes):
    timm = pytest.importorskip("timm.models.vision_transformer")
    size = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
    # timm runs these weights with the exact GELU, the published code with the approximation.
    layers = {"num_classes": 10, "act_layer": "gelu_tanh"}
    return timm.VisionTransformer(**(size | layers | changes))


def test_vit(tmp_path):
    path = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER).save(tmp_path / "vit.npz")
    card, task = ours(path, "google")
    assert card.model == ViTSettings.of(
        picture_px=(16, 16), patch=4, width=48, depth=2, heads=3, mlp_width=96, gelu="tanh", norm_epsilon=1e-6
    )
    assert card.preprocessing.size_px == (16, 16) and card.preprocessing.mean == (0.5, 0.5, 0.5)
    peer = timm_vit()
    peer.load_pretrained(str(path))
    compare(task, peer, (16, 16))


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("name", ["big-vision", "big-vision-plain", "big-vision-target"])
def test_big_vision(tmp_path, name, pool):
    maker = Maker().vit(VIT, google.COUNTED_BY_KIND, google.BEFORE_CLASS_TOKEN, has_class=pool == "class")
    path = maker.save(tmp_path / "vit.npz", FORMATS[name].prefix)
    card, task = ours(path, name)
    assert card.model.pool == pool
    # timm's reader wants the norm before the pooling, as big_vision has it.
    kind = {"no_embed_class": True} if pool == "class" else {"class_token": False, "global_pool": "avg"}
    peer = timm_vit(**kind, final_norm=True, fc_norm=False)
    peer.load_pretrained(str(path))
    compare(task, peer, (16, 16))


def test_stacked_blocks(tmp_path):
    maker = Maker().vit(VIT, google.COUNTED_BY_KIND, google.BEFORE_CLASS_TOKEN)
    stacked = Maker()
    for name, array in maker.arrays.items():
        if "encoderblock_0" in name:
            both = [array, maker.arrays[name.replace("block_0", "block_1")]]
            stacked.arrays[name.replace("block_0", "block")] = np.stack(both)
        elif "encoderblock_" not in name:
            stacked.arrays[name] = array
    path = stacked.save(tmp_path / "vit.npz", "params/")
    _, task = ours(path, "big-vision-stacked")
    peer = timm_vit(no_embed_class=True)
    peer.load_pretrained(str(path))
    compare(task, peer, (16, 16))


def test_both_spellings_are_one_model(tmp_path):
    released = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER)
    renamed = Maker()
    for name, array in released.arrays.items():
        new = dict(zip(google.RELEASED, google.COUNTED_BY_KIND, strict=True))
        renamed.arrays["/".join(new.get(part, part) for part in name.split("/"))] = array
    one = ours(released.save(tmp_path / "a.npz"), "google")
    two = ours(renamed.save(tmp_path / "b.npz"), "google-flax")
    assert one[0] == two[0]
    for name, tensor in one[1].state_dict().items():
        assert torch.equal(tensor, two[1].state_dict()[name])


def test_hidden_layer_of_the_head(tmp_path):
    path = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER, hidden=True).save(tmp_path / "vit.npz")
    card, task = ours(path, "google")
    assert card.task.head == "tanh"
    peer = timm_vit()
    peer.load_pretrained(str(path))  # leaves the hidden layer out
    arrays = np.load(path)
    kernel, bias = (torch.from_numpy(arrays[f"pre_logits/{kind}"]) for kind in ("kernel", "bias"))
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        pooled = peer.eval().forward_head(peer.forward_features(images), pre_logits=True)
        assert_close_relative(task.predict(images).logits, peer.head(torch.tanh(pooled @ kernel + bias)), 1e-5)


def test_without_a_head(tmp_path):
    path = Maker().vit(VIT | {"classes": 0}, google.RELEASED, google.IN_ENCODER).save(tmp_path / "vit.npz")
    card, weights, report = read(open_weights(path), FORMATS["google"])
    assert card.task is None and card.classes == () and report.is_exact
    assert all(name.startswith("encoder.") for name in weights)


def test_positions_that_are_no_square(tmp_path):
    path = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER, grid=(2, 6)).save(tmp_path / "vit.npz")
    with pytest.raises(UserError, match="12 positions are not a square; give the picture size"):
        read(open_weights(path), FORMATS["google"])
    with pytest.raises(UserError, match="not a square"):
        read(open_weights(path), FORMATS["google"], (16, 16))
    card, task = ours(path, "google", (8, 24))
    assert card.model.picture_px == (8, 24)
    peer = timm_vit(img_size=(8, 24))
    peer.load_pretrained(str(path))
    compare(task, peer, (8, 24))


@pytest.mark.parametrize(("depths", "patch"), [((1, 1, 2), 1), ((), 2)], ids=["resnet", "root"])
def test_hybrid(tmp_path, depths, patch):
    timm = pytest.importorskip("timm.models.vision_transformer_hybrid")
    maker = Maker()
    channels = maker.hybrid(depths)
    stride = 16 if depths else 8
    maker.vit(VIT, google.RELEASED, google.IN_ENCODER, channels=channels, patch=patch, grid=(2, 2))
    path = maker.save(tmp_path / "hybrid.npz")
    # The published code has other epsilons in its convolutional part; timm's reader leaves its own.
    stem = ResNetStem(depths=depths, norm_epsilon=1e-5, conv_epsilon=1e-8)
    card, task = ours(path, "google", stem=stem)
    assert card.model.stem == ResNetStem(
        depths=depths, norm_epsilon=1e-6, conv_epsilon=1e-5, standardisation="deviation"
    )
    assert card.model.picture_px == (2 * stride, 2 * stride)
    embed = functools.partial(timm.HybridEmbed, backbone=timm._resnetv2(depths))
    peer = timm_vit(img_size=2 * stride, patch_size=patch, embed_layer=embed)
    peer.load_pretrained(str(path))
    compare(task, peer, (2 * stride, 2 * stride))


def test_filters_are_standardised_as_in_the_code_they_come_from(tmp_path):
    """The hybrids' code adds 1e-5 to the deviation, BiT's 1e-10 to the variance: far apart where a filter is small."""
    maker = Maker()
    channels = maker.hybrid((1,))
    maker.vit(VIT, google.RELEASED, google.IN_ENCODER, channels=channels, patch=1, grid=(2, 2))
    maker.arrays["conv_root/kernel"] *= 1e-4
    kernel = maker.arrays["conv_root/kernel"].astype(np.float64)
    hybrid = vitreous.load(maker.save(tmp_path / "hybrid.npz")).task().encoder.stem.trunk.levels[0][0].conv
    expected = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
    assert_close_relative(hybrid.double().filters().detach(), torch.from_numpy(expected).permute(3, 2, 0, 1), 1e-12)
    maker = Maker().bit((1,))
    maker.arrays["resnet/root_block/standardized_conv2d/kernel"] *= 1e-4
    kernel = maker.arrays["resnet/root_block/standardized_conv2d/kernel"].astype(np.float64)
    bit = vitreous.load(maker.save(tmp_path / "bit.npz")).task().encoder.trunk.levels[0][0].conv
    expected = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
    assert_close_relative(bit.double().filters().detach(), torch.from_numpy(expected).permute(3, 2, 0, 1), 1e-12)


def test_group_norms_of_four_axes_come_back_with_them(tmp_path):
    maker = Maker()
    channels = maker.hybrid((1,))
    maker.vit(VIT, google.RELEASED, google.IN_ENCODER, channels=channels, patch=1, grid=(2, 2))
    flat = vitreous.load(maker.save(tmp_path / "flat.npz"))
    for name, array in maker.arrays.items():
        maker.arrays[name] = array[None, None, None] if "gn" in name else array
    found = vitreous.load(maker.save(tmp_path / "four.npz"))
    assert {name for name, tensor in flat.weights.items() if not torch.equal(tensor, found.weights[name])} == set()
    # Through our own format and back: the shapes are kept with the weights.
    for start in ("flat", "four"):
        convert(str(tmp_path / f"{start}.npz"), tmp_path / start)
        convert(str(tmp_path / start), tmp_path / f"{start}-again.npz", "google")
        before, after = (np.load(tmp_path / f"{name}.npz") for name in (start, f"{start}-again"))
        assert sorted(before.files) == sorted(after.files)
        assert all(before[name].shape == after[name].shape for name in before.files)
        assert all(before[name].tobytes() == after[name].tobytes() for name in before.files)
    assert np.load(tmp_path / "four-again.npz")["gn_root/scale"].shape == (1, 1, 1, 64)


def test_bit(tmp_path):
    timm = pytest.importorskip("timm.models.resnetv2")
    path = Maker().bit((1, 2)).save(tmp_path / "bit.npz")
    card, task = ours(path, "google-bit", (32, 48), conv_epsilon=1e-8)
    assert card.model == ResNetSettings(picture_px=(32, 48), depths=(1, 2), base_width=64)
    peer = timm.ResNetV2(
        layers=(1, 2),
        channels=(256, 512),
        num_classes=10,
        stem_type="fixed",
        conv_layer=functools.partial(timm.StdConv2d, eps=1e-8),
    )
    peer.load_pretrained(str(path))
    compare(task, peer, (32, 48))


def test_what_has_no_place_is_refused(tmp_path):
    path = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER).save(tmp_path / "vit.npz")
    card, weights, _ = read(open_weights(path), FORMATS["google"])
    with pytest.raises(UserError, match="holds ResNets; for a ViT choose google"):
        FORMATS["google-bit"].rules(card)
    for changes in ({"positions": "sincos"}, {"pool": "mean"}, {"num_registers": 2}):
        other = dataclasses.replace(card, model=dataclasses.replace(card.model, **changes))
        with pytest.raises(UserError, match="google"):
            FORMATS["google"].rules(other)
    with pytest.raises(UserError, match="cannot store"):
        apply_write(FORMATS["google"].rules(card), weights | {"encoder.blocks.0.attention_scale.factor": torch.ones(1)})


@pytest.mark.parametrize("change", ["heads", "axes", "missing"])
def test_odd_files_are_refused_in_a_line(tmp_path, change):
    maker = Maker().vit(VIT, google.RELEASED, google.IN_ENCODER)
    query = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    if change == "heads":
        maker.add(query, 48, 3, 15)
    elif change == "axes":
        maker.add("embedding/kernel", 48, 48)
    else:
        del maker.arrays["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"]
    path = maker.save(tmp_path / "vit.npz")
    with pytest.raises(UserError, match=r"vit\.npz: "):
        read(open_weights(path), FORMATS["google"])
