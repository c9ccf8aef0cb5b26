"""Colours of classes, the same wherever they are shown."""

import colorsys

# Of Okabe and Ito (2008), distinguishable by all eyes, brightest contrasts first; a further class is a turn of the hue.
FIRST_COLOURS = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
)
GOLDEN = 0.6180339887498949


def palette(num: int) -> list[tuple[int, int, int]]:
    """A colour for each of `num` classes, always the same for the same number of a class."""
    colours = list(FIRST_COLOURS[:num])
    for place in range(len(colours), num):
        hue, light = place * GOLDEN % 1, (0.62, 0.42, 0.78)[place % 3]
        red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours
