"""Numbers as words, wherever people read them."""


def counted(num: int, one: str, many: str = "") -> str:
    """'1 picture', '1,200 pictures'."""
    return f"{num:,} {one if num == 1 else many or one + 's'}"


def percent(share: float, digits: int = 1) -> str:
    """0.987 -> '98.7 %'."""
    return f"{100 * share:.{digits}f} %"


def class_in_words(name: str) -> str:
    """A class before a number: '3' -> 'class 3', so that '3 31.1 %' is not read as two numbers."""
    return f"class {name}" if name.isdecimal() else name
