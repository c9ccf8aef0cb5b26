"""What pack_boxes, pack_masks and pack_captions share: their command line, and pictures in, parquet files out."""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitreous.data.base import Source
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
GROUP = 100  # rows that are read together

Row = dict[str, Any]
Pack = Callable[[Source, int, int, int], Row]  # a picture by its index, at most so many px, of this JPEG quality


def arguments(doc: str | None, px: int, quality: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--px", type=int, default=px)
    parser.add_argument("--quality", type=int, default=quality)
    parser.add_argument("--most_mb", type=float)
    parser.add_argument("source")
    parser.add_argument("splits", nargs="+")
    return parser


def opened(options: argparse.Namespace, targets: Literal["boxes", "masks", "captions"]) -> list[Source]:
    """The splits that were asked for."""
    found = open_sources(options.source, Layout(targets=targets))
    missing = [split for split in options.splits if split not in found]
    if missing:
        raise SystemExit(f"{options.source}: has no {missing[0]}, but {', '.join(found)}")
    return [found[split] for split in options.splits]


def rows_of(source: Source, pack: Pack, options: argparse.Namespace, names: set[str] | None = None) -> list[Row]:
    """Of the pictures with these names, without their suffixes; of all, if none are given."""
    indices = [index for index in range(len(source)) if names is None or Path(source.where(index)).stem in names]
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda index: pack(source, index, options.px, options.quality), indices))


def write(rows: list[Row], schema: pa.Schema, options: argparse.Namespace, counted: Callable[[list[Row]], str]) -> None:
    """One file, or with --most_mb several. `counted`: what was written, in words."""
    out = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file = partial(_write, schema=schema, counted=counted)
    if options.most_mb is None:
        write_file(rows, out)
        return
    parts = shares(rows, 1e6 * options.most_mb)
    for number, part in enumerate(parts):
        write_file(part, out.with_name(f"{out.stem}-{number:05}-of-{len(parts):05}{out.suffix}"))


def _write(rows: list[Row], out: Path, schema: pa.Schema, counted: Callable[[list[Row]], str]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out, compression="none", row_group_size=GROUP)
    print(f"{out}: {len(rows):,} pictures, {counted(rows)}, {out.stat().st_size / 1e6:.1f} MB")


def shares(rows: list[Row], most_bytes: float) -> list[list[Row]]:
    """In a random order, as few parts of about the same size as stay below so many bytes."""
    order = np.random.default_rng(0).permutation(len(rows))
    total = sum(len(row["image"]["bytes"]) for row in rows)
    num = max(1, int(np.ceil(1.05 * total / most_bytes)))
    return [[rows[index] for index in part] for part in np.array_split(order, num)]
