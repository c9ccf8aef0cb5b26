"""One small set of pictures with boxes, written in every format that is read."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("cat", "dog", "eel")
SIZES = [(40, 60), (50, 30), (64, 64), (32, 48)]  # height and width
# x0 y0 x1 y1 in whole pixels; the third picture has no objects
BOXES = [[(5, 6, 25, 30), (30, 2, 60, 40)], [(0, 10, 30, 50)], [], [(1, 1, 11, 9), (20, 12, 40, 30), (3, 20, 9, 31)]]
LABELS = [[0, 1], [1], [], [1, 1, 0]]  # no eel
NAMES = ["a.png", "b.png", "c.png", "d.png"]


def picture(index):
    rng = np.random.default_rng(index)
    return rng.integers(0, 255, (*SIZES[index], 3)).astype(np.uint8)


def write_pictures(folder, indices=range(4)):
    folder.mkdir(parents=True, exist_ok=True)
    for index in indices:
        Image.fromarray(picture(index)).save(folder / NAMES[index])
    return folder


def coco_json(indices=range(4), **changes):
    images = [{"id": 10 + i, "file_name": NAMES[i], "height": SIZES[i][0], "width": SIZES[i][1]} for i in indices]
    annotations = [
        {"id": 100 * i + k, "image_id": 10 + i, "category_id": 7 + 3 * label, "iscrowd": 0}
        | {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
        for i in indices
        for k, ((x0, y0, x1, y1), label) in enumerate(zip(BOXES[i], LABELS[i], strict=True))
    ]
    categories = [{"id": 7 + 3 * number, "name": name} for number, name in enumerate(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories} | changes


def write_coco(root, indices=range(4), **changes):
    write_pictures(root / "images", indices)
    (root / "instances.json").write_text(json.dumps(coco_json(indices, **changes)))
    return root


def yolo_text(index):
    height, width = SIZES[index]
    lines = [
        f"{label} {(x0 + x1) / 2 / width} {(y0 + y1) / 2 / height} {(x1 - x0) / width} {(y1 - y0) / height}"
        for (x0, y0, x1, y1), label in zip(BOXES[index], LABELS[index], strict=True)
    ]
    return "\n".join(lines)


def write_yolo(root, splits=None, yaml=True):
    splits = splits or {"train": range(4)}
    for split, indices in splits.items():
        write_pictures(root / "images" / split, indices)
        (root / "labels" / split).mkdir(parents=True)
        for index in indices:
            (root / "labels" / split / NAMES[index]).with_suffix(".txt").write_text(yolo_text(index))
    if yaml:
        lines = [f"{split}: images/{split}" for split in splits]
        (root / "data.yaml").write_text("\n".join([*lines, "nc: 3", f"names: {list(CLASSES)}"]))
    return root


def voc_xml(index, first=1, more=""):
    height, width = SIZES[index]
    objects = "".join(
        f"<object><name>{CLASSES[label]}</name><difficult>0</difficult><bndbox><xmin>{x0 + first}</xmin>"
        f"<ymin>{y0 + first}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for (x0, y0, x1, y1), label in zip(BOXES[index], LABELS[index], strict=True)
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>{NAMES[index]}</filename>{size}{objects}{more}</annotation>"


def write_voc(root, indices=range(4), first=1):
    write_pictures(root / "JPEGImages", indices)
    (root / "Annotations").mkdir(parents=True)
    for index in indices:
        (root / "Annotations" / NAMES[index]).with_suffix(".xml").write_text(voc_xml(index, first))
    return root


def write_parquet(path, metadata=None, sizes=True, cells=None, column="objects"):
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = write_pictures(path.parent / "pictures")
    boxes = [[list(map(float, box)) for box in one] for one in BOXES]
    table = {
        "image": [{"bytes": (folder / name).read_bytes(), "path": name} for name in NAMES],
        column: cells or [{"bbox": b, "category": k} for b, k in zip(boxes, LABELS, strict=True)],
    }
    if sizes:
        table |= {"height": [size[0] for size in SIZES], "width": [size[1] for size in SIZES]}
    for name in NAMES:
        (folder / name).unlink()
    folder.rmdir()
    given = {"classes": json.dumps(CLASSES)} if metadata is None else metadata
    pq.write_table(pa.table(table).replace_schema_metadata(given), path)
    return path
