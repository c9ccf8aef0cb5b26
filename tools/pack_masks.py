#!/usr/bin/env python3
"""Pack pictures with a class per pixel, in any format that is read, into parquet files of smaller JPEGs and PNG masks.

    python tools/pack_masks.py voc_seg/train.parquet --px 320 --most_mb 33 VOC2012 train
    python tools/pack_masks.py voc_seg/val.parquet --px 320 --most_mb 33 VOC2012 val

After the source come its splits, `all` where it has none. `--px` is the longer side; smaller pictures stay as they are.
Masks are made smaller by the nearest pixel; what is ignored is 255. With `--most_mb` several files are written, none
larger, with pictures in a random order: train-00000-of-00003.parquet.
"""

import argparse
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pack_boxes import GROUP, shares
from PIL import Image

from vitreous.batch import IGNORED
from vitreous.data.base import Source
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema([("image", FILE), ("mask", FILE)])
NOTHING = 255  # in files: does not count


def packed(source: Source, index: int, most_px: int, quality: int) -> dict[str, Any]:
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


def write(rows: list[dict[str, Any]], classes: tuple[str, ...], out: Path) -> None:
    about = {"classes": json.dumps(classes), "ignore_index": str(NOTHING)}
    table = pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(about))
    pq.write_table(table, out, compression="none", row_group_size=GROUP)
    print(f"{out}: {len(rows):,} pictures with masks, {out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=320)
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--most_mb", type=float)
    parser.add_argument("source")
    parser.add_argument("splits", nargs="+")
    options = parser.parse_args()
    found = open_sources(options.source, Layout(targets="masks"))
    missing = [split for split in options.splits if split not in found]
    if missing:
        raise SystemExit(f"{options.source}: has no {missing[0]}, but {', '.join(found)}")
    if len(found[options.splits[0]].classes) > NOTHING:
        raise SystemExit(f"{options.source}: more than {NOTHING} classes do not fit into masks of one byte")
    rows: list[dict[str, Any]] = []
    for split in options.splits:
        source = found[split]
        with ThreadPoolExecutor() as threads:
            rows += threads.map(
                lambda index, source=source: packed(source, index, options.px, options.quality), range(len(source))
            )
    classes, out = found[options.splits[0]].classes, options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    if options.most_mb is None:
        write(rows, classes, out)
        return
    parts = shares(rows, 1e6 * options.most_mb)
    for number, part in enumerate(parts):
        write(part, classes, out.with_name(f"{out.stem}-{number:05}-of-{len(parts):05}{out.suffix}"))


if __name__ == "__main__":
    main()
