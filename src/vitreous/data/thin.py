"""What is computed of a very thin picture. Knows no torch.

Resizing keeps the proportions: 20,000 x 1 pixels, brought to a shorter side of 256, would be five million wide before
the centre is cut out. Of a side so long only the pixels that are kept are computed, from all that the filter reaches.
Pictures of up to 8:1 are resized whole, and then cut.
"""

import math
from typing import NamedTuple

LONGEST = 8  # times the longer side of the input: how long a picture may become before it is cut
MAX_LINES = 32_768  # of a side that is squashed; longer ones belong to pictures of more than 8:1, or 134 megapixels
REACH = 2  # of the widest filter, the cubic one, in pixels of the coarser side


def step(side: int) -> int:
    """Every how many lines of a side that is squashed are looked at: all, unless there are too many."""
    return -(-side // MAX_LINES)


def most(target: tuple[int, int]) -> int:
    """How long a side may become when a picture is resized to cover `target`."""
    return LONGEST * max(target)


class Window(NamedTuple):
    """One side of a picture that is resized and cut."""

    source: int  # pixels that there are
    out: int  # pixels of the whole, resized
    kept: slice  # of these
    computed: slice  # of these: all, or those that are kept
    seen: slice  # of the source, for that


class Cut(NamedTuple):
    """A picture is resized to `whole`, and `size` at `corner` is kept; a side above `most` is not resized whole."""

    whole: tuple[int, int]
    corner: tuple[int, int]
    size: tuple[int, int]
    most: int

    def windows(self, picture: tuple[int, ...]) -> list[Window]:
        """Of a picture's height and width."""
        sides = zip(picture, self.whole, self.corner, self.size, strict=True)
        return [self._window(source, out, slice(start, start + size)) for source, out, start, size in sides]

    def _window(self, source: int, out: int, kept: slice) -> Window:
        computed = kept if out > self.most else slice(0, out)
        scale = source / out
        reach = REACH * max(scale, 1.0) + 1
        first, last = math.floor(computed.start * scale - reach), math.ceil(computed.stop * scale + reach)
        return Window(source, out, kept, computed, slice(max(first, 0), min(last, source)))
