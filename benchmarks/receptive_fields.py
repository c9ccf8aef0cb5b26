"""The effective receptive fields of several families, side by side: one figure, and their sizes as JSON.

    python benchmarks/receptive_fields.py vitreous-s swin_t pvt_v2_b2 convnext_t bit_r50x1 \
        --pictures docs/images/pictures --out docs/results/receptive_fields

Each is a run, a folder or file of weights, an encoder that ships, or the name of a model (`vitreous list models`): that
one has fresh weights, and shows what its architecture does before it has learned anything. Trained weights are shown
at the size they were trained for, fresh ones at `--picture_px`.
"""

import argparse
import json
from pathlib import Path

import torch

from vitreous.cli import one_line_errors
from vitreous.data.images import read_picture
from vitreous.data.transforms import Preprocessing
from vitreous.display.figures import save
from vitreous.inspection.receptive import ReceptiveFields, receptive_fields
from vitreous.inspection.receptive_figures import receptive_figure
from vitreous.models import MODELS, model_settings
from vitreous.models.base import Encoder
from vitreous.prediction.pictures import picture_files
from vitreous.training.environment import environment
from vitreous.weights.trained import Trained

SHARES = (0.5, 0.95)  # of the gradient, whose squares are measured


def opened(start: str, picture_px: int) -> tuple[str, Encoder, Preprocessing]:
    """What to call it, the encoder, and how it sees pictures."""
    if start in MODELS and not Path(start).exists():
        settings = model_settings(start).for_side(picture_px)
        torch.manual_seed(0)
        return f"{settings.name}, fresh weights", settings.build(), Preprocessing(size_px=settings.picture_px)
    trained = Trained.load(start)
    name = f"{trained.card.model.family} of {Path(start).name}, trained"
    return name, trained.encoder(), trained.card.preprocessing


def measured(found: ReceptiveFields) -> dict[str, dict[str, int]]:
    """By the names of maps: the sides of the squares that hold these shares of the gradient, in px."""
    return {one.name: {f"{share:.0%}": one.side_px(share) for share in SHARES} for one in found.fields}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("starts", nargs="+", metavar="MODEL")
    parser.add_argument("--pictures", type=Path, required=True, metavar="DIR")
    parser.add_argument("--num", type=int, default=16, metavar="N", help="pictures (default: 16)")
    parser.add_argument("--picture_px", type=int, default=224, metavar="PX", help="of fresh models (default: 224)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="without its ending: .png, .svg, .json")
    options = parser.parse_args()
    paths = picture_files(options.pictures)[: options.num]
    fields: dict[str, ReceptiveFields | str] = {}
    for start in options.starts:
        name, encoder, preprocessing = opened(start, options.picture_px)
        pixels = torch.stack([preprocessing.resized(read_picture(path)) for path in paths])
        images = preprocessing.normalised(pixels.to(options.device))
        found = receptive_fields(encoder.eval().to(options.device), images, options.num)
        print(name, measured(found), flush=True)
        fields[name] = found
    save(receptive_figure(fields), options.out)
    sizes = {name: measured(found) for name, found in fields.items() if isinstance(found, ReceptiveFields)}
    document = {"pictures": len(paths), "side_px": sizes, "environment": environment()}
    options.out.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
