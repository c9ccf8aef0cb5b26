"""Made-up shapes of objects, and a predictor that finds them, for the tests of what scores, shows and serves them."""

import numpy as np
import torch

from vitreous.data.base import Subset
from vitreous.data.names import Layout
from vitreous.data.sources import open_sources
from vitreous.data.targets.instances import packed, unpacked
from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.reading import Fitting, Reading
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings
from vitreous.weights.calibration import BoxCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

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
            whole = np.array(unpacked(bits[0].numpy(), max(1, len(shapes))), np.float32)
            cells = whole.reshape(-1, height // 4, 4, width // 4, 4).mean(axis=(2, 4))
            for number, label in enumerate(objects.classes.tolist()):
                masks[at, 2 * number] = np.roll(18 * cells[number] - 9, int(rng.random() < 0.3), axis=1)
                masks[at, 2 * number + 1] = np.roll(18 * cells[number] - 9, 9, axis=0)
                logits[at, 2 * number, [label, -1]] = rng.normal(3, 1), -3
                logits[at, 2 * number + 1, [label, -1]] = rng.normal(1, 1), 0
        return {"logits": logits, "masks": masks}


def small_finder(classes, picture_px=(32, 48), **calibrated):
    """A model that says something of every picture: shapes of all sizes, whatever is there."""
    torch.manual_seed(1)
    model = ViTSettings.of(picture_px=picture_px, patch=8, width=16, depth=1, heads=2)
    settings = MaskQuerySettings(
        output="instances",
        queries=8,
        width=16,
        heads=2,
        mlp_width=16,
        decoder_depth=1,
        pixel=PixelSettings(mask_width=16, mlp_width=16, depth=1, looks=2),
        points=PointSettings(number=64),
    )
    task = settings.build(model.build(), classes)
    with torch.no_grad():
        for parameter in task.head.classes.parameters():
            parameter.normal_(0, 0.6)
    card = Card(
        model=model,
        task=settings,
        classes=classes,
        preprocessing=Preprocessing(size_px=picture_px, crop="letterbox"),
        calibration=BoxCalibration(slopes=(0.7,), threshold=0.2, **calibrated),
    )
    return Trained(card, task.state_dict(), "here")
