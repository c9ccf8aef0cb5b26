"""Pictures of any proportions: ordinary ones are looked at whole, thin ones take no more memory than ordinary ones."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from vitreous.data import placement, resample, thin
from vitreous.data.transforms import Preprocessing, _resize_by_pillow

# Fits pictures that would take many gigabytes if they were resized whole. The limit is there to stop it; the resident
# memory, which is what counts, is printed.
CODE = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from onnx import TensorProto
from vitreous.data import resample
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.transforms import Preprocessing
from vitreous.export.graph import Graph, Value
from vitreous.export.pictures import write_pictures
from vitreous.export.runtime import open_session
from vitreous.export.usage import Fitting

def session(preprocessing):
    graph = Graph()
    fitted = write_pictures(Fitting(**vars(preprocessing)), graph, "pictures")
    given = ("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))
    model = graph.model([given], {"fitted": Value(fitted, (3, *preprocessing.size_px))})
    return open_session(model.SerializeToString(), threads=1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

torch.set_num_threads(1)
crops = ("centre", "squash", "squash-centre")
ways = [Preprocessing(crop=crop, resizer=resizer) for crop in crops for resizer in ("torch", "pillow")]
sessions = [session(way) for way in ways[::2]]
strips = [np.full((20_000, 1, 3), 99, np.uint8), np.full((1, 20_000, 3), 99, np.uint8)]
strips += [np.full((1, 49_000_000, 3), 99, np.uint8), np.full((9_000_000, 1, 3), 99, np.uint8)]
Preprocessing(size_px=(9, 9)).resized(np.zeros((20, 20, 3), np.uint8))
pages = int(Path("/proc/self/statm").read_text().split()[0])
before = peak()
limit = pages * resource.getpagesize() + (3 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for strip in strips:
    for way in ways:
        assert (way.resized(strip) == 99).all()
    for one in sessions:
        (found,) = one.run(None, {"pictures": strip[None]})
        assert abs(found - (99 / 255 - 0.5) / 0.5).max() < 1e-5
    for crop in ("centre", "squash", "pad", "random-resized"):
        out = torch.empty(1, 3, 224, 224, dtype=torch.uint8)
        Augmentation(crop=CropSettings(method=crop)).build(ways[0]).cut_pictures([strip], torch.tensor([1]), out)
        assert (out == 99).all()
    batch = torch.from_numpy(strip)[None].permute(0, 3, 1, 2)
    assert (resample.cover_crop(batch, (224, 224), 0.875, "bicubic") == 99).all()
print((peak() - before) >> 10)
"""


def test_memory_of_thin_pictures():
    pytest.importorskip("onnxruntime")
    ended = subprocess.run([sys.executable, "-c", CODE], check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 1000, "MB"


@pytest.mark.parametrize("size", [(224, 224), (384, 128), (32, 200), (9, 1)])
def test_pictures_of_up_to_eight_to_one_are_computed_whole(size):
    for shape in ((1, 1), (1, 8), (8, 1), (480, 640), (3000, 375), (499, 3992), (3535, 28280)):
        resized, corner = resample.cover(size, 0.875, *shape)
        cut = thin.Cut(resized, corner, size, thin.most(placement.enlarged(size, 0.875)))
        for window in cut.windows(shape):
            assert (window.computed, window.seen) == (slice(0, window.out), slice(0, window.source))
            assert thin.step(window.source) == 1


@pytest.mark.parametrize("resizer", ["torch", "pillow"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("shape", [(20, 300), (1, 17), (301, 3), (40, 1000), (2000, 90), (700, 31)])
def test_the_centre_of_a_thin_picture_is_that_of_the_whole(shape, interpolation, resizer):
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size_px=(28, 32), interpolation=interpolation, resizer=resizer)
    whole, (top, left) = resample.cover((28, 32), 0.875, *shape)
    images = torch.from_numpy(picture)[None].permute(0, 3, 1, 2)
    resize = _resize_by_pillow if resizer == "pillow" else resample.resize
    expected = resize(images, whole, interpolation)[0, :, top : top + 28, left : left + 32]
    apart = (expected.int() - preprocessing.resized(picture).int()).abs()
    assert apart.max() <= (1 if interpolation != "nearest" else 0)
    assert (apart > 0).float().mean() < 0.05
    batched = resample.cover_crop(images, (28, 32), 0.875, interpolation)[0]
    assert resizer == "pillow" or (batched.int() - expected.int()).abs().max() <= 1
