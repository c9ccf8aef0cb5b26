"""Whatever may be given as a picture, as pixels. Knows no torch: a tensor is known by what it can do."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.images import BadPicture, Picture, pillow_pixels, read_picture
from vitreous.data.skipped import Skipped
from vitreous.data.walk import pictures_under
from vitreous.errors import UserError
from vitreous.terminal import note

if TYPE_CHECKING:
    from torch import Tensor

# A file or its bytes; Pillow's; an array (H, W, 3) or (H, W) of uint8; a tensor (3, H, W), uint8 or floats from 0 to 1.
AnyPicture: TypeAlias = "bytes | Path | str | Image.Image | Picture | Tensor"


def pixels(picture: AnyPicture) -> Picture:
    """(H, W, 3) uint8. Raises BadPicture where a file is no readable picture."""
    if isinstance(picture, str | Path | bytes):
        return read_picture(Path(picture) if isinstance(picture, str) else picture)
    if isinstance(picture, Image.Image):
        return pillow_pixels(picture)
    if isinstance(picture, np.ndarray):
        return _from_array(picture)
    if hasattr(picture, "detach"):
        return _from_tensor(picture)
    raise UserError(f"{type(picture).__name__} is no picture: give a path, bytes, a Pillow image, an array or a tensor")


def pixels_of_one(picture: AnyPicture) -> Picture:
    """The same for a single picture, of which nothing else tells the name: the reason begins with it."""
    try:
        return pixels(picture)
    except BadPicture as error:
        raise BadPicture(f"{picture}: {error}" if isinstance(picture, str | Path) else str(error)) from None


def pixels_or_why(picture: AnyPicture) -> Picture | BadPicture:
    try:
        return pixels(picture)
    except BadPicture as error:
        return error


def picture_files(folder: Path) -> list[Path]:
    """Every file called as pictures are, in all folders below, in order; a note names what is skipped."""
    skipped = Skipped(str(folder))
    found = [Path(path) for path in pictures_under(folder, skipped)]
    note(*skipped.notes())
    return found


def _from_array(array: NDArray[Any]) -> Picture:
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or not array.size:
        raise UserError(
            f"an array {array.shape} of {array.dtype} is no picture: give (H, W, 3) of uint8, or (H, W) for grey"
        )
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def _from_tensor(tensor: Any) -> Picture:
    values = tensor.detach().cpu()
    if values.is_floating_point():
        if not (values.numel() and float(values.min()) >= 0 and float(values.max()) <= 1):  # false for NaN too
            raise UserError("a tensor of floats has values from 0 to 1 before it is normalised; this one has others")
        values = (255 * values.float()).round().byte()
    if values.ndim != 3 or values.shape[0] not in (1, 3):
        raise UserError(
            f"a tensor {tuple(values.shape)} is no picture: give (3, H, W), of uint8 or of floats from 0 to 1"
        )
    return _from_array(np.ascontiguousarray(values.expand(3, -1, -1).permute(1, 2, 0).numpy()))
