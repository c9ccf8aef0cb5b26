"""The cleaning of texts before they are cut into tokens. It is part of a tokenizer's format: the same vocabulary with
another cleaning gives other tokens."""

import html
import re
import string
from collections.abc import Callable
from typing import Any, Literal, get_args

from vitreous.errors import UserError

# none: no cleaning, if the tokenizer itself does it. clip: OpenAI's and open_clip's. siglip: transformers'.
Cleaning = Literal["none", "clip", "siglip"]

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def cleaning(name: str) -> Callable[[str], str]:
    """The cleaning of this name in a tokenizer's document."""
    if name not in get_args(Cleaning):
        raise UserError(f"there is no way of cleaning texts called {name!r}; there are {', '.join(get_args(Cleaning))}")
    if name == "clip":
        needed("ftfy")  # an error, if any, comes before the first text
    return CLEANINGS[name]


def needed(library: str) -> Any:
    """A library of the extra `words`."""
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError:
        raise UserError(f"texts need the library {library}: pip install 'vitreous[words]'") from None


def _clip(text: str) -> str:
    """Repairs wrongly decoded letters and curly quotes, and resolves HTML entities: captions come from web pages."""
    fixed: str = needed("ftfy").fix_text(text)
    return " ".join(html.unescape(html.unescape(fixed)).split()).lower()


def _siglip(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower().translate(NO_PUNCTUATION)).strip()


CLEANINGS: dict[str, Callable[[str], str]] = {"none": str, "clip": _clip, "siglip": _siglip}
