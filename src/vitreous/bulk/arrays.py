"""Embeddings as one array: embeddings.npy (N, D) float32, and names.csv beside it, row for row."""

import csv
import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vitreous.bulk.output import Output

VALUES, NAMES = "embeddings.npy", "names.csv"


def write_arrays(output: Output) -> None:
    """From complete rows, part by part. A picture without an embedding is a row of NaN."""
    about = output.manifest()
    assert about is not None and about["done"]
    width = about["width"]
    header = {"descr": "<f4", "fortran_order": False, "shape": (about["done"]["rows"], width)}
    with output.store.writing(VALUES) as values, output.store.writing(NAMES) as names:
        np.lib.format.write_array_header_2_0(values, header)
        text = io.TextIOWrapper(names, encoding="utf-8", newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["name", "error"])
        for table in output.tables():
            for block in embeddings(table, width):
                values.write(block.astype("<f4").tobytes())
            lines.writerows(zip(table["name"].to_pylist(), table["error"].to_pylist(), strict=True))
        text.flush()
        text.detach()


def embeddings(table: pa.Table, width: int) -> Iterator[NDArray[np.float32]]:
    """(n, D) of rows, in order."""
    for chunk in table["embedding"].chunks:
        found = np.full((len(chunk), width), np.nan, np.float32)
        known = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)  # of rows that are not null
        found[chunk.is_valid().to_numpy(zero_copy_only=False)] = known
        yield found
