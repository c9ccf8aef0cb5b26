#!/usr/bin/env python3
"""Pack pictures with captions, in any format that is read, into parquet files of smaller JPEGs.

    python tools/pack_captions.py packed/train.parquet --px 160 --most_mb 24 flickr8k train
    python tools/pack_captions.py packed/test.parquet --px 160 --most_mb 24 flickr8k test

After the source come its splits, `all` where it has none. `--px` is the shorter side; smaller pictures stay as they
are. Files are written in shares, none larger than `--most_mb`, with pictures in a random order:
train-00000-of-00002.parquet.
"""

import argparse
import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pack_boxes import GROUP, shares
from PIL import Image

from vitreous.data.base import Source
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema([("image", FILE), ("captions", pa.list_(pa.string()))])


def packed(source: Source, index: int, px: int, quality: int) -> dict[str, Any]:
    picture, out = Image.fromarray(source.read(index)), io.BytesIO()
    scale = min(1.0, px / min(picture.size))
    size = (round(picture.width * scale), round(picture.height * scale))
    picture.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=quality, optimize=True)
    captions = source.targets.of_picture(index)  # type: ignore[attr-defined]
    return {"image": {"bytes": out.getvalue(), "path": Path(source.where(index)).name}, "captions": captions}


def write(rows: list[dict[str, Any]], out: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out, compression="none", row_group_size=GROUP)
    captions = sum(len(row["captions"]) for row in rows)
    print(f"{out}: {len(rows):,} pictures, {captions:,} captions, {out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=160)
    parser.add_argument("--quality", type=int, default=80)
    parser.add_argument("--most_mb", type=float, default=1_000.0)
    parser.add_argument("source")
    parser.add_argument("splits", nargs="+")
    options = parser.parse_args()
    found = open_sources(options.source, Layout(targets="captions"))
    missing = [split for split in options.splits if split not in found]
    if missing:
        raise SystemExit(f"{options.source}: has no {missing[0]}, but {', '.join(found)}")
    rows: list[dict[str, Any]] = []
    for split in options.splits:
        source = found[split]
        read = partial(packed, source, px=options.px, quality=options.quality)
        with ThreadPoolExecutor() as threads:
            rows += threads.map(read, range(len(source)))
    out = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = shares(rows, 1e6 * options.most_mb)
    for number, part in enumerate(parts):
        write(part, out.with_name(f"{out.stem}-{number:05}-of-{len(parts):05}{out.suffix}"))


if __name__ == "__main__":
    main()
