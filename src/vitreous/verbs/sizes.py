"""Picture sizes as people type them."""

import argparse
import re


def picture_size(text: str) -> int | tuple[int, int]:
    """224 for a square; 224x320 or 224,320 for a height and a width."""
    match = re.fullmatch(r"(\d{1,5})(?:[x,](\d{1,5}))?", text)
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2] and (match[2].lstrip("0") or "0")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a picture size: give one number, or HEIGHTxWIDTH")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))
