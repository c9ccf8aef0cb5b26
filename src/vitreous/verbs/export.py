"""vitreous export"""

import argparse

from vitreous.display.words import counted, percent
from vitreous.verbs import add_quiet
from vitreous.verbs.sizes import picture_size

HELP = "Export a model to a file for other runtimes, with a certificate."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("start", metavar="MODEL", help="a run, a file or folder of weights, hf:owner/name or timm:name")
    parser.add_argument(
        "--to", choices=("onnx", "torch-export", "safetensors"), default="onnx", help="the format (default: onnx)"
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--int8", action="store_true", help="round weights and activations to 8 bits (onnx)")
    precision.add_argument(
        "--bf16", action="store_true", help="store weights in 16 bits; torch-export computes in them, too"
    )
    parser.add_argument(
        "--input", choices=("pictures", "tensors"), help="uint8 pictures of any size, or normalised tensors"
    )
    parser.add_argument("--check", metavar="FOLDER", help="pictures to check with (default: the run's test part)")
    parser.add_argument("--check-limit", type=int, default=200, metavar="N", help="how many at most (default: 200)")
    parser.add_argument(
        "--picture-px",
        type=picture_size,
        metavar="N",
        help="resize its positions for pictures of N px; HxW where they are not square",
    )
    parser.add_argument("--out", metavar="FILE", help="the file (default: named after the model, in this folder)")
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    from vitreous.export.job import export
    from vitreous.export.speed import in_words
    from vitreous.terminal import quietly

    with quietly(options.quiet):
        done = export(
            options.start,
            options.to,
            precision="int8" if options.int8 else "bf16" if options.bf16 else "fp32",
            input=options.input,
            check=options.check,
            num_checks=options.check_limit,
            picture_px=options.picture_px,
            out=options.out,
        )
    near, fast = done.certificate["agreement"], done.certificate["speed"]
    print(f"{done.path}  {done.certificate['result']['bytes'] / 1e6:.1f} MB")
    print(
        f"{near['summary']}, largest difference of "
        f"{near['compared']} {near['largest_difference']:.2g}  ({near['origin']})"
    )
    for name in ("accuracy", "AP"):
        if near.get(f"{name}_eager") is not None:
            print(f"{name} {percent(near[f'{name}_exported'], 2)}, before {percent(near[f'{name}_eager'], 2)}")
    if "warning" in near:
        print(near["warning"])
    print(f"one picture at a time on {counted(fast['threads'], 'thread')}: {in_words(fast)}")
    print(f"certificate {done.path}.certificate.json")
