#!/usr/bin/env python3
"""Pack pictures with boxes, in any format that is read, into one parquet file of smaller JPEGs.

    python tools/pack_boxes.py voc/train.parquet --px 320 VOC2012 train val
    python tools/pack_boxes.py voc/test.parquet --px 320 --names VOC2007/ImageSets/Main/test.txt VOC2007 all

After the source come its splits, `all` where it has none. `--px` is the longer side; smaller pictures stay as they are.
`--names` lists the pictures to take, without their suffixes. Difficult objects become crowds, which are neither learned
nor counted.
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


def packed(source: Source, index: int, most_px: int) -> dict[str, Any]:
    picture, objects = Image.fromarray(source.read(index)), source.targets.of(index)  # type: ignore[attr-defined]
    before, out = picture.size, io.BytesIO()
    picture.thumbnail((most_px, most_px), Image.Resampling.BICUBIC)
    picture.save(out, "JPEG", quality=88)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=320)
    parser.add_argument("--names", type=Path)
    parser.add_argument("source")
    parser.add_argument("splits", nargs="+")
    options = parser.parse_args()
    found = open_sources(options.source, Layout(targets="boxes"))
    wanted = None if options.names is None else {line.split()[0] for line in options.names.read_text().splitlines()}
    rows: list[dict[str, Any]] = []
    for split in options.splits:
        source = found[split]
        indices = [i for i in range(len(source)) if wanted is None or Path(source.where(i)).stem in wanted]
        with ThreadPoolExecutor() as threads:
            rows += threads.map(lambda index, source=source: packed(source, index, options.px), indices)
    classes = found[options.splits[0]].classes
    about = {"classes": json.dumps(classes), "bbox_format": "xyxy absolute pixels"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(about))
    pq.write_table(table, options.out, compression="none", row_group_size=500)
    boxes = sum(len(row["objects"]["bbox"]) for row in rows)
    print(f"{options.out}: {len(rows):,} pictures, {boxes:,} boxes, {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
