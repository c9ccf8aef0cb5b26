"""Makes the embedded data set from Fashion-MNIST's four original files (Debian: package dataset-fashion-mnist).

    python tools/make_fashion.py /usr/share/datasets/fashion-mnist src/vitreous/data/fashion

12,000 training and 2,000 test pictures, balanced over the ten classes, chosen from the like splits by a seeded hash,
in their original order, as lossless WebP in parquet. The same pictures come out anywhere; the same bytes come out
with the versions of Pillow and pyarrow that the constraints file pins. Takes about two minutes.
"""

import gzip
import hashlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vitreous.data.splits import limited

CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
SEED = 0


def read_idx(path: Path) -> np.ndarray:
    """An array in the format of the MNIST files: its shape as big-endian integers, then its bytes."""
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", lossless=True, quality=100, method=6)
    return file.getvalue()


def make_split(originals: Path, prefix: str, num: int, target: Path) -> None:
    pictures = read_idx(originals / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(originals / f"{prefix}-labels-idx1-ubyte.gz").astype(np.int64)
    chosen = limited(labels, num, SEED)
    names = {"names": CLASSES, "_type": "ClassLabel"}
    features = {"info": {"features": {"image": {"_type": "Image"}, "label": names}}}
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", cell), ("label", pa.int64())], metadata={"huggingface": json.dumps(features)})
    rows = {"image": [{"bytes": encoded(pictures[at]), "path": None} for at in chosen], "label": labels[chosen]}
    table = pa.table(rows, schema=schema)
    pq.write_table(
        table, target, compression="zstd", compression_level=19, use_dictionary=["label"], row_group_size=2000
    )
    print(f"{hashlib.sha256(target.read_bytes()).hexdigest()}  {target}  {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    originals, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    make_split(originals, "train", 12_000, target / "train-00000-of-00001.parquet")
    make_split(originals, "t10k", 2_000, target / "test-00000-of-00001.parquet")
