"""The part of YAML that lists of classes and folders are written in: names with a value, a list, or names below.

Makes nothing but texts, lists and dictionaries of a file. Knows no torch.
"""

import re
from typing import Any

_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s:#'"\[\]{},][^:#]*?)\s*:(?:\s+(.*)|)$""")
_OPEN, _CLOSE = "[{", "]}"


def read_plain_yaml(text: str) -> dict[str, Any]:
    """Top-level names and what they have: a text, a list of texts, a dictionary of texts, or None. Raises ValueError
    with the number of the line."""
    lines = [_without_comment(line) for line in text.lstrip("\ufeff").splitlines()]
    found: dict[str, Any] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.startswith(("---", "...", "%")):
            at += 1
            continue
        match = None if line[0].isspace() else _KEY.match(line)
        if match is None:
            raise ValueError(f"line {at + 1} is neither a name with a value nor part of one")
        below = _num_below(lines, at + 1)
        found[_text(match[1])] = _value(match[2] or "", lines[at + 1 : at + 1 + below], at + 1)
        at += 1 + below
    return found


def _num_below(lines: list[str], first: int) -> int:
    """How many of the following lines belong to a name: indented ones, empty ones, and those of a list."""
    num = 0
    for line in lines[first:]:
        if line.strip() and not line[0].isspace() and not line.startswith(("- ", "]", "}")) and line != "-":
            break
        num += 1
    return num


def _value(rest: str, below: list[str], number: int) -> Any:
    if rest.startswith(("|", ">")):  # a text of several lines, such as a program that downloads the set
        return "\n".join(line.strip() for line in below)
    if rest[:1] and rest[0] in _OPEN:
        return _flow(" ".join([rest, *(line.strip() for line in below)]).strip(), number)
    inside = [line.strip() for line in below if line.strip()]
    if rest:
        return _text(" ".join([rest, *inside]))
    if not inside:
        return None
    if all(line.startswith("- ") for line in inside):
        return [_text(line[2:].strip()) for line in inside]
    if inside[0][0] in _OPEN:
        return _flow(" ".join(inside), number)
    pairs = [_KEY.match(line) for line in inside]
    return {_text(pair[1]): _text(pair[2] or "") for pair in pairs if pair is not None}  # what is deeper is not wanted


def _flow(text: str, number: int) -> Any:
    """[a, b] or {a: b}, which hold texts alone."""
    closing = _CLOSE[_OPEN.index(text[0])]
    if not text.endswith(closing):
        raise ValueError(f"line {number} opens {text[0]} and never closes it")
    parts = [part.strip() for part in _split(text[1:-1])]
    parts = [part for part in parts if part]
    if closing == "]":
        return [_text(part) for part in parts]
    pairs = [re.match(r"""("[^"]*"|'[^']*'|[^:]+?)\s*:\s*(.*)$""", part) for part in parts]
    if any(pair is None for pair in pairs):
        raise ValueError(f"line {number} has an entry without a colon")
    return {_text(pair[1]): _text(pair[2]) for pair in pairs if pair is not None}


def _split(text: str) -> list[str]:
    """At commas that are in no quotes."""
    return re.findall(r"""(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^,"'])+""", text)


def _text(word: str) -> str:
    word = word.strip()
    if len(word) >= 2 and word[0] == word[-1] == "'":
        return word[1:-1].replace("''", "'")
    if len(word) >= 2 and word[0] == word[-1] == '"':
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


def _without_comment(line: str) -> str:
    """A # begins one at the start of a line or after a space, but not in quotes."""
    quote, is_escaped = "", False
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote and not is_escaped else quote
            is_escaped = quote == '"' and letter == "\\" and not is_escaped
        elif letter in "'\"" and (at == 0 or line[at - 1] in " \t[{,:-"):
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line.rstrip()
