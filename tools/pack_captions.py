#!/usr/bin/env python3
"""Pack pictures with captions, in any format that is read, into parquet files of smaller JPEGs.

    python tools/pack_captions.py packed/train.parquet --px 160 --most_mb 24 flickr8k train
    python tools/pack_captions.py packed/test.parquet --px 160 --most_mb 24 flickr8k test

After the source come its splits, `all` where it has none. `--px` is the shorter side; smaller pictures stay as they
are. With `--most_mb` several files are written, none larger, with pictures in a random order:
train-00000-of-00002.parquet.
"""

import io
from pathlib import Path

import pyarrow as pa
from packing import FILE, Row, arguments, opened, rows_of, write
from PIL import Image

from vitreous.data.base import Source

SCHEMA = pa.schema([("image", FILE), ("captions", pa.list_(pa.string()))])


def packed(source: Source, index: int, px: int, quality: int) -> Row:
    picture, out = Image.fromarray(source.read(index)), io.BytesIO()
    scale = min(1.0, px / min(picture.size))
    size = (round(picture.width * scale), round(picture.height * scale))
    picture.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=quality, optimize=True)
    captions = source.targets.of_picture(index)  # type: ignore[attr-defined]
    return {"image": {"bytes": out.getvalue(), "path": Path(source.where(index)).name}, "captions": captions}


def num_captions(rows: list[Row]) -> str:
    return f"{sum(len(row['captions']) for row in rows):,} captions"


def main() -> None:
    options = arguments(__doc__, px=160, quality=80).parse_args()
    rows = [row for source in opened(options, "captions") for row in rows_of(source, packed, options)]
    write(rows, SCHEMA, options, num_captions)


if __name__ == "__main__":
    main()
