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

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
