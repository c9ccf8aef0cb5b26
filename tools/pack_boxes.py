#!/usr/bin/env python3
"""Pack pictures with boxes, in any format that is read, into parquet files of smaller JPEGs.

    python tools/pack_boxes.py voc/train.parquet --px 320 --most_mb 33 VOC2012 train val
    python tools/pack_boxes.py voc/test.parquet --px 320 --names VOC2007/ImageSets/Main/test.txt VOC2007 all

After the source come its splits, `all` where it has none. `--px` is the longer side; smaller pictures stay as they are.
`--names` lists the pictures to take, without their suffixes. With `--most_mb` several files are written, none larger,
with pictures in a random order: train-00000-of-00009.parquet. Difficult objects become crowds, which are neither
learned nor counted.
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
from PIL import Image

from vitreous.data.base import Source
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources

OBJECTS = pa.struct(
    [
        ("bbox", pa.list_(pa.list_(pa.float32()))),
        ("category", pa.list_(pa.int64())),
        ("area", pa.list_(pa.float32())),
        ("iscrowd", pa.list_(pa.int8())),
    ]
)
SCHEMA = pa.schema(
    [
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("image_id", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("objects", OBJECTS),
    ]
)


GROUP = 100  # rows that are read together


def packed(source: Source, index: int, most_px: int, quality: int) -> dict[str, Any]:
    picture, objects = Image.fromarray(source.read(index)), source.targets.of(index)  # type: ignore[attr-defined]
    before, out = picture.size, io.BytesIO()
    picture.thumbnail((most_px, most_px), Image.Resampling.BICUBIC)
    picture.save(out, "JPEG", quality=quality)
    boxes = objects.boxes * np.tile(np.divide(picture.size, before), 2)
    found = {
        "bbox": boxes.tolist(),
        "category": objects.classes.tolist(),
        "area": (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).tolist(),
        "iscrowd": objects.crowd.astype(int).tolist(),
    }
    name = Path(source.where(index)).name
    shape = {"width": picture.width, "height": picture.height}
    return {"image": {"bytes": out.getvalue(), "path": name}, "image_id": Path(name).stem, **shape, "objects": found}


def shares(rows: list[dict[str, Any]], most_bytes: float) -> list[list[dict[str, Any]]]:
    """As few parts of about the same size as stay below so many bytes."""
    order = np.random.default_rng(0).permutation(len(rows))
    total = sum(len(row["image"]["bytes"]) for row in rows)
    num = max(1, int(np.ceil(1.05 * total / most_bytes)))
    return [[rows[index] for index in part] for part in np.array_split(order, num)]


def write(rows: list[dict[str, Any]], classes: tuple[str, ...], out: Path) -> None:
    about = {"classes": json.dumps(classes), "bbox_format": "xyxy absolute pixels"}
    table = pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(about))
    pq.write_table(table, out, compression="none", row_group_size=GROUP)
    boxes = sum(len(row["objects"]["bbox"]) for row in rows)
    print(f"{out}: {len(rows):,} pictures, {boxes:,} boxes, {out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=320)
    parser.add_argument("--quality", type=int, default=88)
    parser.add_argument("--most_mb", type=float)
    parser.add_argument("--names", type=Path)
    parser.add_argument("source")
    parser.add_argument("splits", nargs="+")
    options = parser.parse_args()
    found = open_sources(options.source, Layout(targets="boxes"))
    wanted = None if options.names is None else {line.split()[0] for line in options.names.read_text().splitlines()}
    missing = [split for split in options.splits if split not in found]
    if missing:
        raise SystemExit(f"{options.source}: has no {missing[0]}, but {', '.join(found)}")
    rows: list[dict[str, Any]] = []
    for split in options.splits:
        source = found[split]
        indices = [i for i in range(len(source)) if wanted is None or Path(source.where(i)).stem in wanted]
        with ThreadPoolExecutor() as threads:
            rows += threads.map(
                lambda index, source=source: packed(source, index, options.px, options.quality), indices
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
