"""Made-up objects and detections of them, good and bad, for the tests of what scores and shows them."""

import json

import numpy as np
import torch
from PIL import Image

from vitreous.data.box_files import BoxedPicture, coco_document
from vitreous.data.rendered_objects import RenderedObjects
from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.reading import Fitting, Reading
from vitreous.tasks.box_precision import Found, Truth
from vitreous.tasks.detect import DetectSettings
from vitreous.weights.calibration import BoxCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


def made_up(pictures=40, classes=3, seed=0, crowd=0.1):
    """About five objects per picture (none in the first), found roughly, twice, as another class, or not at all; and
    detections of nothing."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for picture in range(1, pictures):
        for _ in range(rng.integers(1, 9)):
            corner, sides = rng.uniform(0, 400, 2), rng.choice([12, 40, 150]) * rng.uniform(0.7, 1.3, 2)
            box = np.concatenate([corner, corner + sides])
            label = int(rng.integers(classes - 1))  # the last class has no object
            truth.append((picture, label, box, rng.random() < crowd))
            for _ in range(rng.integers(0, 3)):
                moved = box + rng.normal(0, 0.08, 4) * np.tile(sides, 2)
                said = label if rng.random() < 0.8 else int(rng.integers(classes))
                found.append((picture, said, moved, rng.uniform(0.2, 1)))
    for _ in range(3 * pictures):
        corner = rng.uniform(0, 400, 2)
        box = np.concatenate([corner, corner + rng.uniform(5, 100, 2)])
        found.append((int(rng.integers(pictures)), int(rng.integers(classes)), box, rng.uniform(0, 0.6)))
    return Truth(*columns(truth)), Found(*columns(found))


def columns(rows):
    picture, classes, boxes, last = zip(*rows, strict=True)
    return np.array(picture), np.array(classes), np.array(boxes), np.array(last)


PREPROCESSING = Preprocessing(size_px=(48, 96), crop="letterbox")


class Oracle(Predictor):
    """Finds every object, with noise; every other time it is sure of something that is not there."""

    fingerprint = "oracle"

    def __init__(self, *sources):
        fitting = Fitting(**vars(PREPROCESSING))
        self.reading = Reading(kind="detect", classes=sources[0].classes, fitting=fitting)
        self.known = {}
        for source in sources:
            for index in range(len(source)):
                self.known[source.read(index).tobytes()] = source.targets.of(index)

    def outputs(self, pictures):
        logits = np.full((len(pictures), 60, len(self.classes)), -8.0, np.float32)
        boxes = np.full((len(pictures), 60, 4), 0.01, np.float32)
        for at, picture in enumerate(pictures):
            objects, rng = self.known[picture.tobytes()], np.random.default_rng(int(picture.sum()))
            shares = objects.boxes / np.tile(picture.shape[1::-1], 2)
            shares = shares + rng.normal(0, 0.01, shares.shape)
            said = np.concatenate([(shares[:, :2] + shares[:, 2:]) / 2, shares[:, 2:] - shares[:, :2]], axis=1)
            num = len(said)
            boxes[at, :num], boxes[at, num : 2 * num] = said, rng.uniform(0.2, 0.3, (num, 4))
            logits[at, np.arange(num), objects.classes] = rng.normal(3, 1, num)
            logits[at, np.arange(num, 2 * num), objects.classes] = rng.normal(1, 1, num)
        return {"logits": logits, "boxes": boxes}


def save_detector(folder, classes, threshold=0.4):
    """A model that says something of every picture: scores and boxes of all sizes, whatever is there."""
    torch.manual_seed(1)
    model = ViTSettings.of(picture_px=(32, 48), patch=8, width=32, depth=1, heads=2)
    sizes = {"queries": 12, "width": 16, "heads": 2, "mlp_width": 16, "encoder_depth": 1, "decoder_depth": 2}
    settings = DetectSettings(levels=1, **sizes)
    task = settings.build(model.build(), classes)
    with torch.no_grad():
        for parameter in task.head.parameters():
            parameter.normal_(0, 0.6)
    card = Card(
        model=model,
        task=settings,
        classes=classes,
        preprocessing=Preprocessing(size_px=(32, 48), crop="letterbox"),
        calibration=BoxCalibration(slopes=(0.7,), threshold=threshold, thresholds=((0.9, 0.5),)),
    )
    Trained(card, task.state_dict(), "here").save(folder)
    return folder


def write_shapes(root, pictures):
    """Some drawn pictures as a COCO folder. pictures: how many of each split."""
    (root / "annotations").mkdir(parents=True)
    for split, num in pictures.items():
        source, written = RenderedObjects(split), []
        (root / split).mkdir()
        for index in range(num):
            Image.fromarray(source.read(index)).save(root / split / f"{index}.png")
            found = source.targets.of(index)
            size = tuple(source.targets.sizes[index].tolist())
            written.append(BoxedPicture(f"{index}.png", size, found.boxes, found.classes))
        document = coco_document(written, source.classes)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))
    return root
