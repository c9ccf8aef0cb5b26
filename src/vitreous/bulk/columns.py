"""Predictions (`prediction.records`) as typed columns of a table. A new kind of task is one line in COLUMNS."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from vitreous.data.kinds import TaskKind
from vitreous.prediction.records import Record

TEXT, REAL, WHOLE = pa.string(), pa.float64(), pa.int32()
PROBABILITIES = pa.list_(pa.struct([("label", TEXT), ("probability", REAL)]))  # of pairs, in a record
SHARES = pa.list_(pa.struct([("label", TEXT), ("share", REAL)]))
OBJECT = [("label", TEXT), ("score", REAL), ("box", pa.list_(REAL))]
SHAPE = [("area", WHOLE), ("mask", pa.struct([("size", pa.list_(WHOLE)), ("counts", TEXT)]))]

COLUMNS: dict[TaskKind, dict[str, pa.DataType]] = {
    "classify": {"label": TEXT, "probability": REAL, "top": PROBABILITIES, "set": pa.list_(TEXT)},
    "label": {"labels": PROBABILITIES, "top": PROBABILITIES},
    "segment": {"width": WHOLE, "height": WHOLE, "confidence": REAL, "shares": SHARES},
    "detect": {"width": WHOLE, "height": WHOLE, "objects": pa.list_(pa.struct(OBJECT))},
    "instances": {"width": WHOLE, "height": WHOLE, "objects": pa.list_(pa.struct(OBJECT + SHAPE))},
}


def arrays(records: Sequence[Record], columns: dict[str, pa.DataType]) -> list[pa.Array]:
    """One per column, with nulls where a record has nothing: no prediction set was asked for."""
    return [
        pa.array([_cell(record.get(name), kind) for record in records], type=kind) for name, kind in columns.items()
    ]


def _cell(value: Any, kind: pa.DataType) -> Any:
    """Arrow needs pairs, which are lists in JSON, as tuples."""
    return [tuple(pair) for pair in value] if kind in (PROBABILITIES, SHARES) and value is not None else value
