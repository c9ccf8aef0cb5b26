"""vitreous convert"""

import argparse

HELP = "Write a model, of ours or anybody's, in another format."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="IN", help="a run, a file or folder of weights, hf:owner/name or timm:name")
    parser.add_argument("out", metavar="OUT", help="a folder; or a file called .safetensors or .npz")
    parser.add_argument("--to", default="vitreous", help="the format (`vitreous list formats`; default: our own)")
    parser.add_argument("--picture-px", type=int, metavar="N", help="resize its positions for pictures of N px")
    parser.add_argument("--patch", type=int, metavar="N", help="resize its patches to N px (FlexiViT)")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="hold both sides against the libraries they belong to (timm, transformers, torchvision)",
    )
    parser.add_argument(
        "--picture", action="append", default=[], metavar="FILE", help="with --verify: compare on this picture too"
    )


def run(options: argparse.Namespace) -> None:
    from vitreous.convert import convert

    print(
        convert(
            options.start,
            options.out,
            options.to,
            options.picture_px,
            options.patch,
            verified=options.verify,
            pictures=options.picture,
        )
    )
