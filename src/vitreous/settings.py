"""Settings: frozen dataclasses <-> JSON <-> command line. Knows no component.

A settings class is a frozen, keyword-only dataclass beside the component it configures, with one verb, `build()`. A
field may be another settings class, or a choice between several (`AdamWSettings | SGDSettings`); a choice is written to
JSON with the chosen class's name under "kind", and switched on the command line with `--optimizer.kind SGD`. The
comment beside a field is its help.

Long-lived files have a version: the class says `FORMAT = 2`, its JSON has "format": 2, a file without a number has
format 1, and a later format than the class's is refused.

A field that moved into a part keeps its old name in files and on the command line if its class says so:
`MOVED = {"balance": "order.balance"}`.
"""

import dataclasses
import difflib
import functools
import inspect
import io
import textwrap
import tokenize
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitreous.errors import UnknownSettingError, UserError, did_you_mean, shown
from vitreous.storage import atomic

S = TypeVar("S")
R = TypeVar("R")


# ---- JSON


def to_json(settings: Any) -> Any:
    """Plain dicts, lists and scalars, from which `from_json` makes an equal object."""
    if not dataclasses.is_dataclass(settings):
        return [to_json(item) for item in settings] if isinstance(settings, tuple | list) else settings
    data = {"format": settings.FORMAT} if hasattr(settings, "FORMAT") else {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        data[field.name] = to_json(value)
        if dataclasses.is_dataclass(value) and len(_choices(_types(type(settings))[field.name])) > 1:
            data[field.name] = {"kind": kind(type(value)), **data[field.name]}
    return data


def from_json(cls: type[S], data: Any, where: str = "") -> S:
    """The settings that `data` describes. Unknown fields and wrong types are errors that name their place."""
    return typing.cast(S, _read(cls, data, where or cls.__name__))


def save(settings: Any, path: Path) -> None:
    atomic.write_json(to_json(settings), path)


def load(cls: type[S], path: Path) -> S:
    return from_json(cls, atomic.read_json(path), where=str(path))


def _read(hint: Any, data: Any, where: str) -> Any:
    choices = _choices(hint)
    if choices and isinstance(data, dict):
        return _read_dataclass(_chosen(choices, data, where), data, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _read(option, data, where)
            except UserError:
                continue
    elif origin is tuple and isinstance(data, list):
        item_types = arguments[:1] * len(data) if arguments[1:] == (Ellipsis,) else arguments
        if len(item_types) == len(data):
            return tuple(_read(item, value, where) for item, value in zip(item_types, data, strict=True))
    elif (
        (origin is typing.Literal and type(data) in (str, int, bool) and data in arguments)
        or (hint in (None, type(None)) and data is None)
        or (hint is float and isinstance(data, int | float) and not isinstance(data, bool))
        or (isinstance(hint, type) and hint is not float and type(data) is hint)
    ):
        return float(data) if hint is float else data
    raise UserError(f"{where}: {shown(data)} is not {type_name(hint)}")


def _read_dataclass(cls: type, data: dict[str, Any], where: str) -> Any:
    hints = _types(cls)
    values = {}
    if hasattr(cls, "FORMAT"):
        _check_format(data.get("format", 1), cls.FORMAT, where)
    for name, value in _in_parts(cls, data).items():
        if (name == "kind" and "kind" not in hints) or (name == "format" and hasattr(cls, "FORMAT")):
            continue
        if name not in hints:
            raise UserError(f"{where}: no field {shown(name)} in {cls.__name__}.{did_you_mean(name, list(hints))}")
        values[name] = _read(hints[name], value, f"{where}.{name}")
    try:
        return cls(**values)
    except (TypeError, UserError) as error:
        raise UserError(f"{where}: {error}") from None


def _in_parts(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    """With moved fields at their new places."""
    moved = {old: new.split(".") for old, new in _moved(cls).items() if old in data}
    found = {name: value for name, value in data.items() if name not in moved}
    for old, (part, name) in moved.items():
        found[part] = {name: data[old], **found.get(part, {})}
    return found


def _moved(cls: type) -> Mapping[str, str]:
    return getattr(cls, "MOVED", {})


def _check_format(number: Any, known: int, where: str) -> None:
    if type(number) is not int or number < 1:
        raise UserError(f"{where}: its format is {shown(number)}, which is not a version number")
    if number > known:
        raise UserError(
            f"{where}: written by a later version of vitreous (format {number}; this one reads up to {known}); "
            "install that version or a later one"
        )


def _chosen(choices: tuple[type, ...], data: dict[str, Any], where: str) -> type:
    if len(choices) == 1:
        return choices[0]
    names = {kind(choice): choice for choice in choices}
    # Without a kind, it was written before the field became a choice, when it was the first.
    wanted = str(data.get("kind", kind(choices[0]))).removesuffix("Settings")
    if wanted not in names:
        raise UserError(
            f"{where}.kind: {shown(wanted)} is not one of {', '.join(names)}.{did_you_mean(wanted, list(names))}"
        )
    return names[wanted]


def kind(cls: type) -> str:
    """A settings class's name among the choices of a field: SGD for SGDSettings."""
    return cls.__name__.removesuffix("Settings")


# ---- Dotted names: the command line's view


@dataclass(frozen=True)
class Field:
    """One setting as the command line shows it."""

    name: str  # dotted
    type: str
    value: Any
    help: str


def fields(settings: Any, prefix: str = "") -> list[Field]:
    """Every setting below `settings`, depth first, with dotted names."""
    found = []
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), _types(type(settings))[field.name]
        name, text = prefix + field.name, _comments(type(settings)).get(field.name, "")
        if dataclasses.is_dataclass(value):
            if len(_choices(hint)) > 1:
                kinds = "one of " + ", ".join(kind(choice) for choice in _choices(hint))
                found.append(Field(f"{name}.kind", kinds, kind(type(value)), text))
            found.extend(fields(value, f"{name}."))
        else:
            found.append(Field(name, type_name(hint), value, text))
    return found


def changed(settings: S, changes: Mapping[str, str]) -> S:
    """A copy of `settings` with fields set by dotted name, from text, checked by type."""
    # Kinds first, the outer before the inner: `--optimizer.kind SGD --optimizer.momentum 0.9` in either order.
    for name in sorted(changes, key=lambda name: (not name.endswith(".kind"), name.count("."))):
        settings = _changed(settings, settings, name, name.split("."), changes[name])
    return settings


def _changed(root: Any, settings: Any, name: str, path: list[str], text: str) -> Any:
    hints, (head, *rest) = _types(type(settings)), path
    if head in _moved(type(settings)):
        head, *rest = [*_moved(type(settings))[head].split("."), *rest]
    if head not in hints:
        _unknown(root, name)
    hint, value = hints[head], getattr(settings, head)
    choices = _choices(hint)
    if rest == ["kind"] and len(choices) > 1:
        cls = _chosen(choices, {"kind": text}, f"--{name}"[: -len(".kind")])
        # Fields that both kinds share by name and type are carried over; a part that was None has none.
        old = {} if value is None else _types(type(value))
        shared = {
            f.name: getattr(value, f.name)
            for f in dataclasses.fields(cls)
            if f.name in old and _types(cls)[f.name] == old[f.name]
        }
        return dataclasses.replace(settings, **{head: cls(**shared)})
    if rest and isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return dataclasses.replace(settings, **{head: _changed_part(root, value, name, rest, text)})
    if rest:
        if value is None and choices:  # a part that was None gets its defaults
            value = choices[0]()
        if not dataclasses.is_dataclass(value):
            _unknown(root, name)
        return dataclasses.replace(settings, **{head: _changed(root, value, name, rest, text)})
    if choices and text.lower() != "none":
        example = f"kind {kind(choices[-1])}" if len(choices) > 1 else dataclasses.fields(choices[0])[0].name
        raise UserError(f"--{name} is a group of settings; set one of them, such as --{name}.{example}")
    return dataclasses.replace(settings, **{head: parsed(hint, text, f"--{name}")})


def _changed_part(root: Any, parts: tuple[Any, ...], name: str, path: list[str], text: str) -> tuple[Any, ...]:
    """A change to one of several parts, by its number: --more_views.0.times 4."""
    number, *rest = path
    if not (number.isdecimal() and int(number) < len(parts) and rest):
        there = "0" if len(parts) == 1 else f"0 to {len(parts) - 1}"
        raise UserError(f"--{name}: name one of the {len(parts)} by its number ({there}), and the field to change")
    place = int(number)
    return (*parts[:place], _changed(root, parts[place], name, rest, text), *parts[place + 1 :])


def _unknown(root: Any, name: str) -> typing.NoReturn:
    known = [field.name for field in fields(root)]
    leaves = [other.rsplit(".", maxsplit=1)[-1] for other in known]
    nearest = difflib.get_close_matches(name.rsplit(".", maxsplit=1)[-1], leaves, n=1, cutoff=0.85)
    leaf = [other for other, own in zip(known, leaves, strict=True) if own in nearest]
    options = [f"--{other}" for other in known]
    hint = f" Did you mean {' or '.join('--' + k for k in leaf[:3])}?" if leaf else did_you_mean(f"--{name}", options)
    raise UnknownSettingError(name, hint or " --help lists those that there are.")


def parsed(hint: Any, text: str, where: str) -> Any:
    """The value of type `hint` that the user typed as `text`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        # None and numbers before text, so that "none" is None and "3" is a number where both are allowed.
        for option in sorted(arguments, key=lambda option: option is str):
            try:
                return parsed(option, text, where)
            except UserError:
                continue
    elif origin is tuple:
        # 224x224 is two numbers, but bit_r50x1 is one name.
        items = (text if str in arguments else text.replace("x", " ")).replace(",", " ").split()
        item_types = arguments[:1] * len(items) if arguments[1:] == (Ellipsis,) else arguments
        if len(items) == len(item_types):
            return tuple(parsed(item, value, where) for item, value in zip(item_types, items, strict=True))
        example = f", such as {','.join(items * len(item_types))}" if len(items) == 1 else ""
        raise UserError(f"{where}: {text!r} is not {type_name(hint)}: give {len(item_types)} values{example}.")
    elif origin is typing.Literal:
        for option in arguments:
            if str(option) == text:
                return option
    elif hint in (None, type(None)):
        if text.lower() == "none":
            return None
    elif hint is bool:
        if text.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text.lower() in ("true", "yes", "on", "1")
    elif hint in (int, float, str):
        try:
            return int(text.replace("_", "").replace(",", "")) if hint is int else hint(text)
        except ValueError:
            pass
    raise UserError(f"{where}: {text!r} is not {type_name(hint)}.{did_you_mean(text, _words(hint))}")


def typed(value: Any) -> str:
    """A value as the user would type it."""
    if isinstance(value, tuple | list) and value and dataclasses.is_dataclass(value[0]):
        return f"{len(value)} of them, by number (.0 ...)"  # their contents are too much for a line
    if isinstance(value, tuple | list):
        return ",".join(typed(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


# ---- Types


def _once(read: Callable[[Any], R]) -> Callable[[Any], R]:
    """Classes do not change, so what is read from one is cached."""
    return functools.cache(read)


@_once
def _types(cls: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _choices(hint: Any) -> tuple[type, ...]:
    """The settings classes that a field chooses from."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(option for option in options if dataclasses.is_dataclass(option) and isinstance(option, type))


def type_name(hint: Any) -> str:
    """A type as a person would write it: `int`, `float or none`, `one of linear, cosine`, `true or false`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if len(words := _words(hint)) > 2 or (words and origin is typing.Literal):
        return "one of " + ", ".join(words)
    if words:
        return " or ".join(words)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(option) for option in arguments)
    if origin is tuple:
        many = arguments[1:] == (Ellipsis,)
        return f"several {type_name(arguments[0])}" if many else ",".join(type_name(item) for item in arguments)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return kind(hint)
    return str(getattr(hint, "__name__", hint))


def _words(hint: Any) -> list[str]:
    """All that one can write for a type, if that is a few words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return [str(option) for option in arguments]
    if origin in (typing.Union, types.UnionType):
        each = [_words(option) for option in arguments]
        return [word for words in each for word in words] if all(each) else []
    if hint is bool:
        return ["true", "false"]
    return ["none"] if hint in (None, type(None)) else []


@_once
def _comments(cls: Any) -> Mapping[str, str]:
    """The comment beside each field, which is its help."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(owner)) if dataclasses.is_dataclass(owner) else ""  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
        name = ""
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME and token.start[1] == 4 and token.line.split(":")[0].strip() == token.string:
                name = token.string
            elif token.type == tokenize.COMMENT and name:
                found[name] = token.string.lstrip("# ").strip()
                name = ""
    return found
