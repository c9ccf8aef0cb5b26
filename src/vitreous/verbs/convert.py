"""vitreous convert"""

import argparse

from vitreous.errors import UserError
from vitreous.verbs.sizes import picture_size

HELP = "Convert a model, ours or anybody's, to another format."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="IN", help="a run, a file or folder of weights, hf:owner/name or timm:name")
    parser.add_argument("out", metavar="OUT", help="a folder, or a file that ends in .safetensors or .npz")
    parser.add_argument("--to", default="vitreous", help="the format (`vitreous list formats`; default: our own)")
    parser.add_argument(
        "--picture-px",
        type=picture_size,
        metavar="N",
        help="resize its positions for pictures of N px; HxW where they are not square",
    )
    parser.add_argument("--patch", type=int, metavar="N", help="resize its patches to N px (FlexiViT)")
    parser.add_argument("--heads", type=int, metavar="N", help="number of attention heads, if the file does not say")
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="with CLIP and the like: write a classifier of 'a cat,a dog' (or of the names in a file)",
    )
    parser.add_argument(
        "--templates", metavar="T", help="for --classes: 'a photo of a {};a drawing of a {}', a file, or none"
    )
    parser.add_argument("--labelled", metavar="DATA", help="for --classes: pictures of these classes, to calibrate on")
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="write it even where the format cannot hold this model exactly, and say how far the outputs differ",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare both sides with the libraries they belong to (timm, transformers, torchvision)",
    )
    parser.add_argument(
        "--picture", action="append", default=[], metavar="FILE", help="compare outputs on this picture too"
    )


def run(options: argparse.Namespace) -> None:
    if options.classes is None and (options.templates is not None or options.labelled is not None):
        raise UserError("--templates and --labelled are for --classes: give that too")
    from vitreous.conversion.convert import convert
    from vitreous.prediction.naming import parse_classes, parse_templates

    print(
        convert(
            options.start,
            options.out,
            options.to,
            options.picture_px,
            options.patch,
            heads=options.heads,
            classes=None if options.classes is None else parse_classes(options.classes),
            templates=parse_templates(options.templates),
            labelled=options.labelled,
            approximate=options.approximate,
            verified=options.verify,
            pictures=options.picture,
        )
    )
