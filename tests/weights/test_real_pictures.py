"""Given a peer's checkpoint with its config, what our model sees of a picture is what the peer's own processor makes of
it, and the five best classes are the same: real photographs, in the sizes, modes, formats and turns that files come in.

A picture is handed to the peer as its own code opens it: upright and as RGB. Transparency and 16 bits are not: Pillow's
conversion drops the one and clips the other. There both get what our reader makes of the file.
"""

import io
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from peers import randomise
from PIL import Image, ImageOps
from safetensors.torch import save_file

from vitreous.data.images import read_picture
from vitreous.prediction.torch_predictor import TorchPredictor

LEVEL = 1 / 255
MODES = ("RGB", "L", "LA", "RGBA", "P", "CMYK", "I;16", "1")
KINDS = {"RGB": ("JPEG", "WEBP"), "CMYK": ("JPEG", "JPEG"), "RGBA": ("PNG", "WEBP")}  # and the others PNG
SIZES = [
    (333, 517),
    (61, 480),
    (427, 640),
    (224, 224),
    (97, 131),
    (400, 300),
    (225, 223),
    (301, 199),
    (256, 256),
    (180, 75),
]


def encoded(photograph: Image.Image, place: int) -> bytes:
    """A part of the photograph, in a size, mode and format by its place, turned as EXIF has it."""
    height, width = SIZES[place % len(SIZES)]
    part = ImageOps.fit(photograph, (min(width, photograph.width), min(height, photograph.height)))
    mode, turned = MODES[place % len(MODES)], Image.Exif()
    turned[0x0112] = place % 8 + 1
    if mode == "I;16":
        part = Image.fromarray(np.asarray(part.convert("L")).astype(np.uint16) * 257)
    elif mode in ("LA", "RGBA"):
        part.putalpha(part.convert("L"))
        part = part.convert(mode)
    else:
        part = part.convert(mode)
    out = io.BytesIO()
    part.save(out, KINDS.get(mode, ("PNG", "PNG"))[place // len(MODES) % 2], exif=turned)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    """As the peers' own code opens a file (transformers' load_image), where that is right."""
    picture = Image.open(io.BytesIO(data))
    if picture.mode in ("LA", "RGBA") or picture.mode.startswith("I"):
        return Image.fromarray(read_picture(data))
    return ImageOps.exif_transpose(picture).convert("RGB")


@pytest.fixture(scope="module")
def from_wheel() -> list[bytes]:
    """The two photographs inside scikit-learn, in 24 files."""
    datasets = pytest.importorskip("sklearn.datasets")
    folder = Path(datasets.__file__).parent / "images"
    photographs = [Image.open(folder / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]
    return [encoded(photographs[place // 8 % 2], place) for place in range(24)]


@pytest.fixture(scope="module")
def from_sets(shared_data: Path) -> list[bytes]:
    """24 photographs of pets and other things, eight of them as they are."""
    rows = pq.read_table(shared_data / "oxford_pets" / "test.parquet", columns=["image"]).slice(0, 12).to_pylist()
    files = [row["image"]["bytes"] for row in rows]
    with tarfile.open(shared_data / "imagenette224" / "val.tar") as archive:
        members = (member for member in archive if member.isfile())
        files += [archive.extractfile(next(members)).read() for _ in range(12)]  # type: ignore[union-attr]
    photographs = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    return [data if i % 3 == 0 else encoded(photographs[i], i) for i, data in enumerate(files)]


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    module = pytest.importorskip("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 32, "num_labels": 20}
CROPPED = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
# The family, its processor and what the published configs say to it.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("ViT", "ViTImageProcessor", {}, {}),
    "deit": ("DeiT", "DeiTImageProcessor", {}, {}),
    "msn": ("ViTMSN", "ViTImageProcessor", {}, {"resample": 3}),
    "beit": (
        "Beit",
        "BeitImageProcessor",
        {"use_relative_position_bias": True},
        {"do_center_crop": False, "size": 224},
    ),
    "dinov2": ("Dinov2", "BitImageProcessor", {"image_size": 448}, CROPPED),
}


def folder_of(transformers: ModuleType, family: str, folder: Path) -> tuple[Any, Any]:
    stem, kind, config, options = FAMILIES[family]
    model = getattr(transformers, f"{stem}ForImageClassification")
    peer = model(model.config_class(**(SMALL | config)))
    randomise(peer)
    processor = getattr(transformers, kind)(**options)
    peer.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return peer, processor


def assert_same(predictor: TorchPredictor, files: list[bytes], inputs: Any, logits: Any, most: float = LEVEL) -> None:
    """`inputs`: what the peer's processor makes of a picture, (1, 3, h, w); `logits`: what its model makes of that."""
    assert len(files) >= 20
    std = torch.tensor(predictor.card.preprocessing.std)[:, None, None]
    for data in files:
        theirs, ours = inputs(opened(data)), predictor.inputs(data)
        assert theirs.shape == ours.shape
        # On the scale of 0 to 1, before mean and std; the small number is for the last bit of float32.
        assert float(((ours - theirs) * std).abs().max()) <= most + 1e-6
        with torch.no_grad():
            best = logits(theirs)[0].topk(5).indices.tolist()
        assert [name for name, _ in predictor(data).top(5)] == [predictor.card.classes[place] for place in best]


@pytest.mark.parametrize("source", ["from_wheel", "from_sets"])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers(family: str, source: str, transformers: ModuleType, tmp_path: Path, request: Any) -> None:
    files = request.getfixturevalue(source)
    peer, processor = folder_of(transformers, family, tmp_path)

    def inputs(picture: Image.Image) -> torch.Tensor:
        return processor(picture, return_tensors="pt")["pixel_values"]

    assert_same(TorchPredictor.load(tmp_path), files, inputs, lambda images: peer(images).logits)


@pytest.mark.parametrize("source", ["from_wheel", "from_sets"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"crop_pct": 0.875, "interpolation": "bilinear", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        {"crop_mode": "squash", "crop_pct": 1.0},
        {"crop_mode": "squash", "crop_pct": 0.95},
    ],
)
def test_timm(changes: dict[str, Any], source: str, tmp_path: Path, request: Any) -> None:
    timm = pytest.importorskip("timm")
    files = request.getfixturevalue(source)
    arguments = {"embed_dim": 64, "depth": 1, "num_heads": 2}
    peer = timm.create_model("vit_base_patch32_224", num_classes=20, **arguments).eval()
    randomise(peer)
    config = {
        key: peer.pretrained_cfg[key] for key in ("mean", "std", "interpolation", "crop_pct", "input_size")
    } | changes
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    document = {"architecture": "vit_base_patch32_224", "model_args": arguments, "pretrained_cfg": config}
    (tmp_path / "config.json").write_text(json.dumps(document))
    transform = timm.data.create_transform(**timm.data.resolve_data_config(config))

    def inputs(picture: Image.Image) -> torch.Tensor:
        return transform(picture)[None]

    # Both resize by Pillow: not one level apart.
    assert_same(TorchPredictor.load(tmp_path), files, inputs, peer, most=0.0)


def test_the_files_are_of_all_kinds(from_wheel: list[bytes]) -> None:
    found = [Image.open(io.BytesIO(data)) for data in from_wheel]
    assert {picture.format for picture in found} == {"JPEG", "PNG", "WEBP"}
    assert {picture.mode for picture in found} == {"RGB", "L", "LA", "RGBA", "P", "CMYK", "I;16", "1"}
    assert {picture.getexif().get(0x0112) for picture in found} == set(range(1, 9))
    assert len({picture.size for picture in found}) >= 8
