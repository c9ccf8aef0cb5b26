"""The command line: finds the verb, separates argparse's options from settings, and shows errors as one line."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import NoReturn

from vitreous.errors import UnknownSettingError, UserError, did_you_mean, in_plain_words
from vitreous.signals import Hearing, Stopped
from vitreous.terminal import lasting_output
from vitreous.verbs import VERBS


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{in_our_words(message)} `{self.prog} --help` shows what it takes")

    def known(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def refuse_if_mistyped(self, option: str) -> None:
        """What is no setting may be an option with a letter missing."""
        if difflib.get_close_matches(option, self.known(), cutoff=0.8):
            self.refuse(option)

    def refuse(self, word: str) -> NoReturn:
        """An unknown argument."""
        raise UserError(
            f"`{self.prog}` does not take {word}.{did_you_mean(word, self.known())} "
            f"`{self.prog} --help` shows what it takes"
        )


KINDS = {"int": "a whole number", "float": "a number"}


def in_our_words(message: str) -> str:
    """argparse's own messages about an option's value, worded like those about settings."""
    if found := re.fullmatch(r"argument (.+): invalid (int|float) value: (.+)", message):
        return f"{found[1]}: {found[3]} is not {KINDS[found[2]]}."
    if found := re.fullmatch(r"argument (.+): invalid choice: '(.+)' \(choose from (.+)\)", message):
        choices = [each.strip("'") for each in found[3].split(", ")]
        return f"{found[1]}: {found[2]!r} is not one of {', '.join(choices)}.{did_you_mean(found[2], choices)}"
    return message.removeprefix("argument ") + "."


def main(arguments: list[str] | None = None) -> None:
    with lasting_output(), one_line_errors(), Hearing():
        dispatch(sys.argv[1:] if arguments is None else arguments)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors that the user can fix end the program with one line and no traceback."""
    try:
        with in_plain_words():
            yield
    except UserError as error:
        if str(error):  # of several processes, one may speak for all
            print(f"vitreous: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as stop:
        print(f"vitreous: {stop}", file=sys.stderr)
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        print("vitreous: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `vitreous list | head`
        sys.stderr.close()


def dispatch(arguments: list[str]) -> None:
    top = parser()
    if arguments and arguments[0] in VERBS:
        run_verb(arguments[0], arguments[1:])
    elif arguments and not arguments[0].startswith("-"):
        names = tuple(VERBS)
        raise UserError(
            f"there is no verb {arguments[0]!r}.{did_you_mean(arguments[0], names)} `vitreous --help` lists them"
        )
    else:
        options, unknown = top.parse_known_args(arguments)
        if unknown:
            top.refuse(unknown[0])
        if options.version:
            from vitreous import __version__

            print(f"vitreous {__version__}")
        else:
            top.print_help()


def parser() -> Parser:
    """The parser of `vitreous` itself; it lists the verbs, which parse their own arguments."""
    lines = [f"  {name:12}{verb(name).HELP}" for name in VERBS]
    top = Parser(
        prog="vitreous",
        usage="vitreous [--help] [--version] VERB ...",
        description="Vision Transformers, from pictures to a trained model.",
        epilog="verbs (each has its own --help):\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    return top


def verb(name: str) -> ModuleType:
    return import_module(f"vitreous.verbs.{VERBS[name]}")


def run_verb(name: str, arguments: list[str]) -> None:
    module = verb(name)
    takes_settings = getattr(module, "TAKES_SETTINGS", False)
    own = Parser(prog=f"vitreous {name}", description=module.HELP, allow_abbrev=False, add_help=not takes_settings)
    module.add(own)
    if not takes_settings:
        options, unknown = own.parse_known_intermixed_args(arguments)
        if unknown:
            own.refuse(unknown[0])
        module.run(options)
        return
    own.add_argument("--help", "-h", action="store_true", help="show this, or every setting once enough is named")
    plain, settings = separated(arguments, own.known())
    options, unknown = own.parse_known_intermixed_args(plain)
    if unknown:
        own.refuse(unknown[0])
    options.parser = own
    try:
        module.run(options, dotted(settings))
    except UnknownSettingError as error:
        own.refuse_if_mistyped(f"--{error.name}")
        raise


def separated(arguments: list[str], known: list[str]) -> tuple[list[str], list[str]]:
    """The words that argparse knows, and the settings, each with its value."""
    plain, settings, words = [], [], iter(arguments)
    for word in words:
        if not word.startswith("--") or word.partition("=")[0] in known:
            plain.append(word)
        else:
            settings += [word] if "=" in word else [word, *islice(words, 1)]
    return plain, settings


def dotted(arguments: list[str]) -> dict[str, str]:
    """['--optimizer.lr', '0.1', '--a=b'] -> {'optimizer.lr': '0.1', 'a': 'b'}."""
    changes: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UserError(f"{word!r}: settings are given as --name value")
        name, has_value, value = word.removeprefix("--").partition("=")
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{name} needs a value")
            value = rest.pop(0)
        changes[name.replace("-", "_")] = value
    return changes
