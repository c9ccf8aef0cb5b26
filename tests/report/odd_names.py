"""Pictures whose classes and files have hostile names."""

import csv
import shutil
from pathlib import Path

from scenes import brightened, encoded, scene

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "&amp; & &lt;b&gt;",
    r"$x_1^2$ \frac{1}{2} \$",
    "עברית \u202eabc",
    "🦄 naïve 漢字",
    'href="#x" style="fill: #0072b2"',
    "</style></title></svg><!-- -->",
    "W" * 120,
)
ODD_FILE = "<b onmouseover=alert(3)>&'\".png"


def write_hostile(root: Path) -> Path:
    """A CSV, since folders cannot have all these names: unequal classes, a broken file, a leak, a contradiction."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for place, label in enumerate(HOSTILE):
        for number in range(30 if place else 110):
            picture = brightened(scene(1000 * place + number, (16, 16)), 0.5, 14 * place)
            name = f"{place}-{number}.png"
            (root / name).write_bytes(encoded(picture))
            rows.append((name, label, "test" if number < 8 else "train"))
    (root / "1-20.png").write_bytes(b"\x89PNG\r\n\x1a\n, but no more")
    shutil.copy(root / "0-0.png", root / ODD_FILE)
    shutil.copy(root / "0-60.png", root / "same.png")
    rows += [(ODD_FILE, HOSTILE[0], "train"), ("same.png", HOSTILE[1], "train")]
    with (root / "pictures.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return root / "pictures.csv"
