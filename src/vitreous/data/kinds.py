"""The kinds of tasks that targets are for: what rooms look up in their tables. Knows no torch."""

from typing import Literal

# One class per picture, several labels, a class per pixel, boxes with a class each, exact shapes with a class each,
# texts that belong to it.
TaskKind = Literal["classify", "label", "segment", "detect", "instances", "match"]
