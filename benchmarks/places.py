"""How often a thing is found where it is in a drawing: by the windows around each place, or the last layer's patches.

    python benchmarks/places.py RUN

RUN: of rendered_clip. Right is a place that is most like one of the two things and nearer to it than to the other.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.rendered_captions import Pairs
from vitreous.inspection.windows import embedded_places
from vitreous.tasks.image_text import ImageText
from vitreous.weights.trained import Trained


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--drawings", type=int, default=200)
    options = parser.parse_args()
    model, drawn = Trained.load(options.run), Pairs("test")
    towers = model.task().eval()
    assert isinstance(towers, ImageText)
    seen = torch.stack([model.card.preprocessing.resized(drawn.picture(index)) for index in range(options.drawings)])
    images = model.card.preprocessing.normalised(seen)
    patches = towers.encoder(images).maps[-1].permute(0, 2, 3, 1)  # (B, h, w, D)
    ways = {
        "windows": embedded_places(towers.encoder, towers.projection, images),
        "last layer's patches": F.normalize(towers.projection(patches), dim=-1),
    }
    texts = [f"a {drawn.thing(index, place)}" for index in range(options.drawings) for place in range(2)]
    words = towers.embed_texts(torch.from_numpy(model.tokenizer()(texts))).view(options.drawings, 2, -1)
    centres = torch.from_numpy(drawn.centre[: options.drawings]).flip(-1)  # (B, 2, 2), y first
    for name, places in ways.items():
        assert places is not None
        print(f"{name}: {found(places, words, centres):.1%} of {2 * options.drawings} things")


def found(places: Tensor, words: Tensor, centres: Tensor) -> float:
    """places (B, h, w, D), words (B, 2, D), centres (B, 2, 2)."""
    high, wide = places.shape[1:3]
    best = torch.einsum("bhwd,btd->bthw", places, words).flatten(2).argmax(dim=2)  # (B, 2)
    at = torch.stack([(best // wide + 0.5) / high, (best % wide + 0.5) / wide], dim=-1)
    distances = torch.cdist(at.double(), centres)  # (B, place, thing)
    own, other = distances.diagonal(dim1=1, dim2=2), distances.flip(2).diagonal(dim1=1, dim2=2)
    return float((own < other).double().mean())


if __name__ == "__main__":
    main()
