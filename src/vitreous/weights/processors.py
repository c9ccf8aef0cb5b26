"""preprocessor_config.json, in which transformers keeps what is done to a picture, and our Preprocessing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from vitreous.data.placement import enlarged
from vitreous.data.resample import Interpolation
from vitreous.data.transforms import MAX_SIDE, Preprocessing
from vitreous.errors import UserError, shown
from vitreous.weights.transformers_config import Config

FILE = "preprocessor_config.json"
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Most published models were trained and tested on ImageNet's statistics, with the centre 224 of 256 px.
USUAL = Preprocessing(
    interpolation="bicubic",
    crop_fraction=0.875,
    skip_fitting=False,
    resizer="pillow",
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
)

RESAMPLING: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers; its nearest is not ours

# What the processors assume where a file leaves something out. Of a plain number as the size, the older ones made a
# square, the ones that crop the shorter side.
SQUARE = {"size": 224, "resample": 2, "image_mean": HALF, "image_std": HALF}
CROPPING = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
    "resample": 3,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}
ASSUMED: dict[str, Mapping[str, Any]] = {
    "ViT": SQUARE,
    "DeiT": SQUARE | {"size": 256, "do_center_crop": True, "crop_size": 224, "resample": 3},
    "Beit": SQUARE | {"resample": 3},
    "Bit": CROPPING,
    "CLIP": CROPPING,
    "Siglip": SQUARE | {"resample": 3},
}


def preprocessing_in(documents: Mapping[str, Any], where: str) -> Preprocessing | None:
    """As the file beside a model says; None where there is none."""
    found = documents.get(FILE)
    return read_preprocessing(found, f"{where}: {FILE}") if isinstance(found, Mapping) else None


def read_preprocessing(config: Mapping[str, Any], where: str) -> Preprocessing:
    """An error names the first field that asks for what we do not do."""
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "ViT")
    assumed = next((values for stem, values in ASSUMED.items() if kind.startswith(stem)), None)
    if assumed is None:
        raise _refusal(where, "image_processor_type", kind)
    # A null is how newer files write "as the class has it".
    found = {**assumed, **{name: value for name, value in config.items() if value is not None}}
    for name, wanted in (("do_resize", True), ("do_rescale", True), ("do_pad", False)):
        if bool(found.get(name, wanted)) != wanted:
            raise _refusal(where, name, found[name])
    factor = found.get("rescale_factor", 1 / 255)
    if not _is_number(factor) or not abs(factor * 255 - 1) <= 1e-6:
        raise _refusal(where, "rescale_factor", factor)
    if not _is_number(found["resample"]) or found["resample"] not in RESAMPLING:
        raise _refusal(where, "resample", found["resample"])
    size, crop, fraction = _size(found, where, square=assumed is not CROPPING)
    normalised = bool(found.get("do_normalize", True))
    return Preprocessing(
        size_px=size,
        crop=crop,
        crop_fraction=fraction,
        odd_margin="down",
        skip_fitting=False,
        interpolation=RESAMPLING[found["resample"]],
        mean=_triple(found, "image_mean", where) if normalised else (0.0, 0.0, 0.0),
        std=_triple(found, "image_std", where) if normalised else (1.0, 1.0, 1.0),
    )


def canvas_in(documents: Mapping[str, Any], where: str, sides: tuple[str, str]) -> tuple[int, int] | None:
    """What a detector's pictures are fitted into: the size's two numbers of these names; None where there are none."""
    document = documents.get(FILE)
    size = document.get("size") if isinstance(document, Mapping) else None
    if not isinstance(size, Mapping) or sides[0] not in size:
        return None
    config = Config(size, {}, f"{where}: {FILE}: size")
    return config.integer(sides[0]), config.integer(sides[1])


def with_statistics(usual: Preprocessing, documents: Mapping[str, Any], where: str) -> Preprocessing:
    """With the mean and the standard deviation that the file gives, if it does."""
    document = documents.get(FILE)
    found = document if isinstance(document, Mapping) else {}
    mean, std = (
        _triple(found, name, f"{where}: {FILE}") if found.get(name) else known
        for name, known in (("image_mean", usual.mean), ("image_std", usual.std))
    )
    return replace(usual, mean=mean, std=std)


def _size(
    found: Mapping[str, Any], where: str, square: bool
) -> tuple[tuple[int, int], Literal["centre", "squash", "squash-centre"], float]:
    """The input's size, how it is come by, and the share that a crop keeps."""
    size = found["size"]
    if isinstance(size, int):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    crop = found.get("crop_size") if found.get("do_center_crop") else None
    if crop is not None:
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        crop = _side(crop, "height", where), _side(crop, "width", where)
    if not isinstance(size, Mapping):
        raise _refusal(where, "size", size)
    if set(size) == {"height", "width"}:
        whole = _side(size, "height", where), _side(size, "width", where)
        if crop in (None, whole):
            return whole, "squash", 1.0
        # DeiT's: squashed to a larger size, of which the centre is cut. One fraction must tell both sides.
        if crop[0] > whole[0] or enlarged(crop, crop[0] / whole[0]) != whole:
            raise _refusal(where, "crop_size", found["crop_size"])
        return crop, "squash-centre", crop[0] / whole[0]
    # The shorter side, then the centre: ours does the same for a square that fits into it.
    if set(size) != {"shortest_edge"} or crop is None:
        raise _refusal(where, "size", found["size"])
    shorter = _side(size, "shortest_edge", where)
    if crop[0] != crop[1] or crop[0] > shorter:
        raise _refusal(where, "crop_size", found["crop_size"])
    return crop, "centre", crop[0] / shorter


def write_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """A processor that every version of transformers has, set to the same."""
    p = preprocessing
    (height, width), numbers = p.size_px, {name: number for number, name in RESAMPLING.items()}
    if p.interpolation not in numbers:
        raise UserError(f"{FILE} cannot say that pictures are resized by the way of {p.interpolation!r}")
    common = {
        "do_resize": True,
        "resample": numbers[p.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
    }
    if p.crop in ("squash", "letterbox"):  # padding is not part of the format
        return {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}, **common}
    tall, wide = enlarged(p.size_px, p.crop_fraction)
    if p.crop == "centre" and height != width:
        raise UserError(
            f"{FILE} cannot say that pictures are cut to {width} x {height} from the centre: it knows squares only"
        )
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": tall} if p.crop == "centre" else {"height": tall, "width": wide},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_convert_rgb": True,
        **common,
    }


def as_written(preprocessing: Preprocessing) -> Preprocessing:
    """What transformers makes of what we write for it."""
    return read_preprocessing(write_preprocessing(preprocessing), FILE)


def _side(sizes: Any, name: str, where: str) -> int:
    value = sizes.get(name) if isinstance(sizes, Mapping) else None
    if type(value) is not int or not 1 <= value <= MAX_SIDE:
        raise UserError(f"{where}: {name} of a size is {shown(value)}, where 1 to {MAX_SIDE} pixels are expected")
    return value


def _triple(found: Mapping[str, Any], name: str, where: str) -> tuple[float, float, float]:
    values = found[name]
    values = [values] * 3 if _is_number(values) else values
    if not isinstance(values, list | tuple) or len(values) != 3 or not all(map(_is_number, values)):
        raise UserError(f"{where}: {name} is {shown(values)}, where three numbers are expected")
    return float(values[0]), float(values[1]), float(values[2])


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _refusal(where: str, name: str, value: Any) -> UserError:
    return UserError(f"{where}: {name} is {shown(value)}, which no preprocessing of ours supports")
