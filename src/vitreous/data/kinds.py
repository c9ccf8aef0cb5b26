"""The kinds of tasks that targets are for: what rooms look up in their tables. Knows no torch."""

from typing import Literal

TaskKind = Literal["classify", "label", "segment"]  # one class per picture, several labels, a class per pixel
