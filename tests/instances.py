"""Made-up shapes of objects, and a predictor that finds them, for the tests of what scores, shows and serves them."""

import numpy as np
import torch

from vitreous.data.base import Subset
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources
from vitreous.data.targets.instances import covered, packed
from vitreous.data.transforms import Preprocessing
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.reading import Fitting, Reading

PREPROCESSING = Preprocessing(size_px=(96, 128), crop="letterbox")


def rendered(split, num):
    """The first pictures of rendered:objects, with their shapes."""
    return Subset(open_sources("rendered:objects", Layout(targets="instances"))[split], np.arange(num))


def blobs(num, height, width, seed=0):
    """(num, height, width): smooth logits with some ground above 0."""
    noise = torch.randn(1, num, 5, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(noise, (height, width), mode="bicubic")[0] * 3 - 1


class ShapeOracle(Predictor):
    """Finds every object as well as cells of 4 x 4 px tell, moved by a cell at times; every other time it is sure of
    something that is not there."""

    fingerprint = "oracle"

    def __init__(self, *sources):
        self.reading = Reading(
            kind="instances", classes=sources[0].classes, fitting=Fitting(**vars(PREPROCESSING)), calibration=None
        )
        self.known = {}
        for source in sources:
            for index in range(len(source)):
                self.known[source.read(index).tobytes()] = source.targets.of(index), source.targets.shapes(index)

    def outputs(self, pictures):
        (height, width), num = PREPROCESSING.size_px, 20
        logits = np.full((len(pictures), num, len(self.classes) + 1), -4.0, np.float32)
        logits[..., -1] = 4
        masks = np.full((len(pictures), num, height // 4, width // 4), -9.0, np.float32)
        for at, picture in enumerate(pictures):
            objects, shapes = self.known[picture.tobytes()]
            rng, one = np.random.default_rng(int(picture.sum())), torch.zeros(1, dtype=torch.int64)
            geometry = PREPROCESSING.geometry(one, *picture.shape[:2])
            bits = geometry.labels(torch.tensor(packed(shapes, picture.shape[:2]))[None], fill=0)
            cells = covered(bits, max(1, len(shapes)))[0].float().numpy()
            for number, label in enumerate(objects.classes.tolist()):
                masks[at, 2 * number] = np.roll(18 * cells[number] - 9, int(rng.random() < 0.3), axis=1)
                masks[at, 2 * number + 1] = np.roll(18 * cells[number] - 9, 9, axis=0)
                logits[at, 2 * number, [label, -1]] = rng.normal(3, 1), -3
                logits[at, 2 * number + 1, [label, -1]] = rng.normal(1, 1), 0
        return {"logits": logits, "masks": masks}
