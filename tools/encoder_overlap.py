#!/usr/bin/env python3
"""How many pictures that the shipped encoders learned from occur in the test sets that are reported on.

    python tools/encoder_overlap.py --squares voc.parquet flickr.parquet --out docs/results/encoder_overlap.json

Copies, re-encoded and resized pictures are found (src/vitreous/data/duplicates.py); crops and mirrored ones are not.
"""

import argparse
from pathlib import Path

from pretrain_encoders import unlabelled

from vitreous.cli import one_line_errors
from vitreous.data.duplicates import overlaps
from vitreous.data.sources import open_sources
from vitreous.storage import atomic
from vitreous.training.environment import environment

TESTS = {"tiny_imagenet": "test", "imagenette224": "val", "oxford_pets": "test", "cifar10": "test", "fashion": "test"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--squares", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tests = [open_sources(name)[split] for name, split in TESTS.items()]
    learned_from = [open_sources("tiny_imagenet")["train"], *map(unlabelled, options.squares)]
    rows = [
        {
            "learned_from": part.name,
            "pictures": len(part),
            "also_in_test_of": {name: len(found) for name, found in zip(TESTS, overlaps(part, tests), strict=True)},
        }
        for part in learned_from
    ]
    atomic.write_json({"environment": environment(), "rows": rows}, options.out)
    for row in rows:
        print(row)


if __name__ == "__main__":
    with one_line_errors():
        main()
