"""Numbers as words, wherever people read them."""


def counted(num: int, one: str, many: str = "") -> str:
    """'1 picture', '1,200 pictures'."""
    return f"{num:,} {one if num == 1 else many or one + 's'}"


def percent(share: float, digits: int = 1) -> str:
    """0.987 -> '98.7 %'."""
    return f"{100 * share:.{digits}f} %"
