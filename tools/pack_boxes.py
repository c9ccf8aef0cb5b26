#!/usr/bin/env python3
"""Pack pictures with boxes, in any format that is read, into parquet files of smaller JPEGs.

    python tools/pack_boxes.py voc/train.parquet --px 320 --most_mb 33 VOC2012 train val
    python tools/pack_boxes.py voc/test.parquet --px 320 --names VOC2007/ImageSets/Main/test.txt VOC2007 all

After the source come its splits, `all` where it has none. `--px` is the longer side; smaller pictures stay as they are.
`--names` lists the pictures to take, without their suffixes. With `--most_mb` several files are written, none larger,
with pictures in a random order: train-00000-of-00009.parquet. Difficult objects become crowds, which are neither
learned nor counted.
"""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from packing import FILE, Row, arguments, opened, rows_of, write
from PIL import Image

from vitreous.data.base import Source

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
        ("image", FILE),
        ("image_id", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("objects", OBJECTS),
    ]
)


def packed(source: Source, index: int, most_px: int, quality: int) -> Row:
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


def num_boxes(rows: list[Row]) -> str:
    return f"{sum(len(row['objects']['bbox']) for row in rows):,} boxes"


def main() -> None:
    parser = arguments(__doc__, px=320, quality=88)
    parser.add_argument("--names", type=Path)
    options = parser.parse_args()
    names = None if options.names is None else {line.split()[0] for line in options.names.read_text().splitlines()}
    sources = opened(options, "boxes")
    rows = [row for source in sources for row in rows_of(source, packed, options, names)]
    about = {"classes": json.dumps(sources[0].classes), "bbox_format": "xyxy absolute pixels"}
    write(rows, SCHEMA.with_metadata(about), options, num_boxes)


if __name__ == "__main__":
    main()
