"""preprocessor_config.json: what the model sees of a picture is what transformers' own processors make of it."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.data.images import Picture, read_picture
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.weights.processors import FILE, USUAL, read_preprocessing, with_statistics, write_preprocessing

SIZES = [
    (97, 131),
    (224, 224),
    (64, 500),
    (333, 48),
    (256, 256),
    (301, 199),
    (17, 23),
    (225, 223),
    (120, 121),
    (400, 300),
]
MODES = ["RGB", "L", "RGBA", "P", "I;16", "LA", "1", "CMYK", "RGB", "L"]


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    module = pytest.importorskip("transformers")
    module.logging.set_verbosity_error()
    return module


def files() -> Iterator[bytes]:
    """Twenty pictures of odd sizes, in the modes and turns that files come in."""
    random = np.random.default_rng(0)
    for place, (height, width) in enumerate(SIZES):
        # Coarse and fine structure, so that every kind of resizing leaves its own traces.
        y, x = np.mgrid[:height, :width]
        waves = [127 + 90 * np.sin(x / (3 + 4 * c) + y / (9 - 2 * c)) for c in range(3)]
        pixels = np.clip(np.stack(waves, axis=-1) + random.normal(0, 20, (height, width, 3)), 0, 255).astype(np.uint8)
        turned = Image.Exif()
        turned[0x0112] = place % 8 + 1
        yield _encoded(Image.fromarray(pixels), "JPEG", quality=90, exif=turned)
        yield _in_mode(pixels, MODES[place])


def _in_mode(pixels: np.ndarray, mode: str) -> bytes:
    picture = Image.fromarray(pixels)
    if mode == "I;16":
        return _encoded(Image.fromarray(pixels[..., 0].astype(np.uint16) * 257), "PNG")
    if mode in ("RGBA", "LA"):
        picture.putalpha(Image.fromarray(pixels[..., 1]))
    return _encoded(picture.convert(mode), "TIFF" if mode == "CMYK" else "PNG")


def _encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return [read_picture(data) for data in files()]


CENTRED = {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessor", {}),
    "vit-wide": ("ViTImageProcessor", {"size": {"height": 40, "width": 72}, "resample": 3}),
    "deit": ("DeiTImageProcessor", {}),
    "vit-plain": ("ViTImageProcessor", {"do_normalize": False}),
    "beit": ("BeitImageProcessor", {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}),
    "clip": ("CLIPImageProcessor", {}),
    "dinov2": ("BitImageProcessor", {"size": {"shortest_edge": 256}}),
    "msn": ("ViTImageProcessor", {"do_center_crop": True, "resample": 2, **CENTRED}),
}


def distances(preprocessing: Preprocessing, processor: Any, pictures: list[Picture]) -> np.ndarray:
    """Of all values of all pictures, in levels of 255, before the mean and the std."""
    std, found = np.array(preprocessing.std)[:, None, None] * 255, []
    for picture in pictures:
        mine = preprocessing.normalised(preprocessing.resized(picture)).numpy()
        answer = processor(picture, return_tensors="np", input_data_format="channels_last")
        found.append(np.abs((mine - np.asarray(answer["pixel_values"])[0]) * std))
    return np.stack(found)


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("case", CONFIGS)
def test_the_same_input_as_the_peer(
    case: str, backend: str, transformers: ModuleType, pictures: list[Picture], tmp_path: Path
) -> None:
    kind, changes = CONFIGS[case]
    processor = getattr(transformers, kind + backend)(**changes)
    processor.save_pretrained(tmp_path)
    found = json.loads((tmp_path / "preprocessor_config.json").read_text())
    preprocessing = read_preprocessing(found, "here")
    assert len(pictures) == 20
    apart = distances(preprocessing, processor, pictures)
    if not backend:  # the peer's default resizes by the same kernel as we do
        assert apart.max() < 1e-3
    elif preprocessing.interpolation != "bicubic":  # Pillow rounds otherwise
        assert apart.max() < 1 + 1e-3
    else:  # and clips otherwise where a bicubic kernel overshoots: the peer's own two differ as much
        assert (apart > 1 + 1e-3).mean() < 2e-3


@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_written_is_read_the_same_by_both(
    case: str, transformers: ModuleType, pictures: list[Picture], tmp_path: Path
) -> None:
    kind, changes = CONFIGS[case]
    getattr(transformers, kind)(**changes).save_pretrained(tmp_path)
    preprocessing = read_preprocessing(json.loads((tmp_path / "preprocessor_config.json").read_text()), "here")
    written = write_preprocessing(preprocessing)
    assert read_preprocessing(written, "there") == preprocessing
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert distances(preprocessing, processor, pictures).max() < 1e-3


# ---- without the peer

PUBLISHED = {
    # google/vit-base-patch16-224, as it was first published
    "vit": (
        {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224},
        Preprocessing(
            crop="squash", crop_fraction=1.0, interpolation="bilinear", odd_margin="down", skip_fitting=False
        ),
    ),
    # openai/clip-vit-base-patch32, likewise
    "clip": (
        {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 224, "do_center_crop": True, "size": 224},
        Preprocessing(
            crop_fraction=1.0,
            odd_margin="down",
            skip_fitting=False,
            interpolation="bicubic",
            mean=(0.48145466, 0.4578275, 0.40821073),
            std=(0.26862954, 0.26130258, 0.27577711),
        ),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_older_files_leave_things_out(name: str) -> None:
    config, expected = PUBLISHED[name]
    assert read_preprocessing(config, "here") == expected


@pytest.mark.parametrize(
    "field, changes",
    [
        ("do_resize", {"do_resize": False}),
        ("do_rescale", {"do_rescale": False}),
        ("do_pad", {"do_pad": True}),
        ("rescale_factor", {"rescale_factor": 1 / 127.5}),
        ("resample", {"resample": 0}),
        ("resample", {"resample": 1}),
        ("size", {"size": {"shortest_edge": 256}}),
        ("size", {"size": {"shortest_edge": 256, "longest_edge": 300}}),
        (
            "crop_size",
            {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": {"height": 224, "width": 200}},
        ),
        ("crop_size", {"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224}),
        ("crop_size", {"size": 200, "do_center_crop": True, "crop_size": 224}),
        ("height", {"size": {"height": "tall", "width": 224}}),
        ("image_mean", {"image_mean": [0.5]}),
        ("image_processor_type", {"image_processor_type": "ConvNextImageProcessor"}),
    ],
)
def test_what_we_do_not_do_is_refused_by_its_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"here: {field}"):
        read_preprocessing({"image_processor_type": "ViTImageProcessor", **changes}, "here")


def test_a_detectors_statistics_are_checked_too() -> None:
    found = with_statistics(USUAL, {FILE: {"image_mean": [0.1, 0.2, 0.3], "image_std": None}}, "here")
    assert (found.mean, found.std) == ((0.1, 0.2, 0.3), USUAL.std)
    with pytest.raises(UserError, match=f"here: {FILE}: image_mean is 'grey', where three numbers are expected"):
        with_statistics(USUAL, {FILE: {"image_mean": "grey"}}, "here")


def test_a_crop_that_is_no_square_cannot_be_written() -> None:
    with pytest.raises(UserError, match="64 x 32"):
        write_preprocessing(Preprocessing(size_px=(32, 64)))


def test_a_way_of_resizing_that_the_peer_has_not_cannot_be_written() -> None:
    with pytest.raises(UserError, match="nearest"):
        write_preprocessing(Preprocessing(interpolation="nearest"))
