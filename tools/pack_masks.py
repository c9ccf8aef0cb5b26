#!/usr/bin/env python3
"""Pack pictures with a class per pixel, in any format that is read, into parquet files of smaller JPEGs and PNG masks.

    python tools/pack_masks.py voc_seg/train.parquet --px 320 --most_mb 33 VOC2012 train
    python tools/pack_masks.py voc_seg/val.parquet --px 320 --most_mb 33 VOC2012 val

After the source come its splits, `all` where it has none. `--px` is the longer side; smaller pictures stay as they are.
Masks are made smaller by the nearest pixel; what is ignored is 255. With `--most_mb` several files are written, none
larger, with pictures in a random order: train-00000-of-00003.parquet.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from packing import FILE, Row, arguments, opened, rows_of, write
from PIL import Image

from vitreous.batch import IGNORED
from vitreous.data.base import Source

SCHEMA = pa.schema([("image", FILE), ("mask", FILE)])
NOTHING = 255  # in files: does not count


def packed(source: Source, index: int, most_px: int, quality: int) -> Row:
    picture, labels = Image.fromarray(source.read(index)), source.targets.read(index)["mask"]
    mask = Image.fromarray(np.where(labels == IGNORED, NOTHING, labels).astype(np.uint8))
    picture.thumbnail((most_px, most_px), Image.Resampling.BICUBIC)
    mask = mask.resize(picture.size, Image.Resampling.NEAREST)
    stem = Path(source.where(index)).stem
    return {
        "image": {"bytes": _file(picture, "JPEG", quality=quality), "path": f"{stem}.jpg"},
        "mask": {"bytes": _file(mask, "PNG", optimize=True), "path": f"{stem}.png"},
    }


def _file(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def main() -> None:
    options = arguments(__doc__, px=320, quality=90).parse_args()
    sources = opened(options, "masks")
    classes = sources[0].classes
    if len(classes) > NOTHING:
        raise SystemExit(f"{options.source}: more than {NOTHING} classes do not fit into masks of one byte")
    rows = [row for source in sources for row in rows_of(source, packed, options)]
    about = {"classes": json.dumps(classes), "ignore_index": str(NOTHING)}
    write(rows, SCHEMA.with_metadata(about), options, lambda rows: "each with its mask")


if __name__ == "__main__":
    main()
