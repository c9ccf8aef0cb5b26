"""What the recipes for ImageNet and larger sets share: its pictures, and training on a machine with many cores."""

from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.training.loop import TrainingSettings
from vitreous.weights.processors import IMAGENET_MEAN, IMAGENET_STD

IMAGENET = Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD)
MANY_CORES = TrainingSettings(clip=None, precision="auto", compile="auto", workers=16, checkpoint_every_s=600)


def unlabelled_imagenet(where: str) -> DataSettings:
    """A hundredth of train is left out, for choices. The labels of its test pictures are secret: everybody reports its
    val pictures."""
    return DataSettings(where=where, val_fraction=0.01, test_split="val", need_labels=False)
