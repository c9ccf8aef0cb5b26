#!/usr/bin/env python3
"""Pack pictures into one parquet file of square JPEGs, for learning without labels.

    python tools/pack_squares.py OUT.parquet --px 128 VOC2012/JPEGImages VOC2012/ImageSets/Main/trainval.txt ...

Arguments after the options are pairs: a folder of JPEGs, and a text file whose lines name those to take (with or
without the suffix). The centre square of each is kept, resized with antialiasing.
"""

import argparse
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def square(path: Path, px: int) -> dict[str, bytes | str]:
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    side, (width, height) = min(picture.size), picture.size
    left, top = (width - side) // 2, (height - side) // 2
    out = io.BytesIO()
    box = (left, top, left + side, top + side)
    picture.resize((px, px), Image.Resampling.BICUBIC, box).save(out, "JPEG", quality=88)
    return {"bytes": out.getvalue(), "path": path.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=128)
    parser.add_argument("folders_and_lists", nargs="+", type=Path)
    options = parser.parse_args()
    given = options.folders_and_lists
    paths = [
        folder / (name if name.lower().endswith(".jpg") else f"{name}.jpg")
        for folder, names in zip(given[::2], given[1::2], strict=True)
        for name in names.read_text().split()
    ]
    with ThreadPoolExecutor() as threads:
        pictures = list(threads.map(lambda path: square(path, options.px), paths))
    table = pa.table({"image": pa.array(pictures, type=IMAGE)})
    pq.write_table(table, options.out, compression="none", row_group_size=2_000)
    print(f"{options.out}: {len(paths):,} pictures, {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
