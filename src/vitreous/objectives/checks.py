"""What numbers in an objective's settings may be; an error names the setting."""

from typing import Any

from vitreous.errors import UserError


def check_counts(settings: Any, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise _refusal(settings, name, "at least 1")


def check_positive(settings: Any, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) > 0:  # true for NaN, too
            raise _refusal(settings, name, "above 0")


def check_shares(settings: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise _refusal(settings, name, "between 0 and 1")


def _refusal(settings: Any, name: str, wanted: str) -> UserError:
    return UserError(f"objective.{name} is {getattr(settings, name)}: it must be {wanted}")
