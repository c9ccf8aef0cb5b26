"""The one kind of exception that means: the user can mend this.

The command line prints its message as one line, without a traceback. A message says what is wrong,
where, and what to do.
"""


class UserError(Exception):
    """Something outside the code is wrong: a path, a file, a setting, a name."""

    exit_code = 2  # of the command that ends with it


def did_you_mean(name: str, known: list[str] | tuple[str, ...]) -> str:
    """' Did you mean ...?' for a mistyped name, or '' when nothing known is near it."""
    import difflib

    if len(name) > 200:  # no typing mistake; comparing it would take long
        return ""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def shown(value: object) -> str:
    """A value as messages show it: as Python writes it, cut where it is long, deep or has many parts."""
    import reprlib

    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    short.maxlong = 30
    short.maxlevel = 2
    return short.repr(value)


def first_line(error: BaseException) -> str:
    """What an error says, in one line of bounded length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
