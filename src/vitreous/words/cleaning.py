"""What is done to a text before it is cut into tokens. It is a part of a tokenizer's format: the same vocabulary behind
another cleaning gives other tokens."""

import html
import re
import string
from collections.abc import Callable
from typing import Any, Literal, get_args

from vitreous.errors import UserError

# none: as it is, where the tokenizer itself says what is to be done. clip: OpenAI's and open_clip's. canonical:
# open_clip's for SigLIP. siglip: transformers'.
Cleaning = Literal["none", "clip", "canonical", "siglip"]

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def cleaning(name: str) -> Callable[[str], str]:
    """By its name in a tokenizer's document."""
    if name not in get_args(Cleaning):
        raise UserError(f"no way of cleaning texts is called {name!r}: {', '.join(get_args(Cleaning))}")
    if name in ("clip", "canonical"):
        needed("ftfy")  # before the first text: whoever lacks it is told so at once
    return CLEANINGS[name]


def needed(library: str) -> Any:
    """A library of the extra `words`."""
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError:
        raise UserError(f"texts need the library {library}: pip install 'vitreous[words]'") from None


def _repaired(text: str) -> str:
    """Wrongly decoded letters and curly quotes put right, HTML's entities resolved: captions come from web pages."""
    fixed: str = needed("ftfy").fix_text(text)
    return html.unescape(html.unescape(fixed)).strip()


def _clip(text: str) -> str:
    return " ".join(_repaired(text).split()).lower()


def _canonical(text: str) -> str:
    return " ".join(_repaired(text).replace("_", " ").translate(NO_PUNCTUATION).lower().split())


def _siglip(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower().translate(NO_PUNCTUATION)).strip()


CLEANINGS: dict[str, Callable[[str], str]] = {"none": str, "clip": _clip, "canonical": _canonical, "siglip": _siglip}
