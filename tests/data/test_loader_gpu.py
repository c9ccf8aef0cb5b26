"""The loader on a GPU: the same choices as on the CPU, compiled, and inside a CUDA graph."""

import numpy as np
import pytest
import torch

from vitreous.batch import Batch
from vitreous.data.augmentation import (
    Augmentation,
    ColourSettings,
    CropSettings,
    EraseSettings,
    MixSettings,
    WarpSettings,
)
from vitreous.data.base import Source
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.rendered_objects import RenderedObjects
from vitreous.data.targets import ClassLabels, PixelLabels
from vitreous.data.targets.pixels import HeldMasks
from vitreous.data.transforms import Preprocessing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PLAIN = Augmentation(mix=MixSettings(mixup=0.8, cutmix=1.0))
STRONG = Augmentation(
    crop=CropSettings(method="pad"),
    warp=WarpSettings(ops=2),
    colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1),
    erase=EraseSettings(probability=0.25, fill="noise"),
    mix=MixSettings(mixup=0.8, cutmix=1.0),
)


class Noise(Source):
    def __init__(self, in_memory: bool) -> None:
        self.name, self.classes = "noise", ("a", "b")
        self.targets = ClassLabels(np.arange(200) % 2)
        generator = np.random.default_rng(0)
        coarse = generator.integers(0, 256, (200, 8, 8, 3)).astype(np.uint8)
        self._pictures = np.kron(coarse, np.ones((1, 4, 4, 1), dtype=np.uint8))
        self.pictures = self._pictures if in_memory else None

    def read(self, index: int) -> np.ndarray:
        return self._pictures[index]

    def where(self, index: int) -> str:
        return str(index)


def loader(augmentation: Augmentation, device: str, in_memory: bool = True, workers: int = 0) -> TrainLoader:
    view = augmentation.build(Preprocessing(size_px=(32, 32)))
    return TrainLoader(Noise(in_memory), [view], batch_size=64, seed=1, device=device, workers=workers)


def assert_alike(gpu: Batch, cpu: Batch) -> None:
    assert torch.equal(gpu.ids.cpu(), cpu.ids)
    assert torch.equal(gpu.keys.cpu(), cpu.keys)
    assert torch.equal(gpu.targets["partner"].cpu(), cpu.targets["partner"])
    torch.testing.assert_close(gpu.targets["weight"].cpu(), cpu.targets["weight"], atol=1e-6, rtol=0)
    apart = (gpu.images.cpu() - cpu.images).abs()
    assert (apart <= 2 / 255 + 1e-4).double().mean() > 0.999


@pytest.mark.parametrize("augmentation", [PLAIN, STRONG])
@pytest.mark.parametrize("in_memory", [True, False])
def test_the_gpu_makes_the_same_batches(augmentation, in_memory):
    workers = 0 if in_memory else 2
    gpu, cpu = loader(augmentation, "cuda", in_memory, workers), loader(augmentation, "cpu", in_memory)
    for a, b in zip(gpu.batches(0, 4), cpu.batches(0, 4), strict=True):
        assert_alike(a, b)


@pytest.mark.parametrize("augmentation", [PLAIN, STRONG])
def test_compiled(augmentation):
    gpu = loader(augmentation, "cuda")
    compiled = torch.compile(gpu.prepare, fullgraph=True)
    for inputs, cpu in zip(gpu.inputs(0, 3), loader(augmentation, "cpu").batches(0, 3), strict=True):
        assert_alike(compiled(*inputs), cpu)


@pytest.mark.parametrize("augmentation", [PLAIN, STRONG])
def test_captured_in_a_cuda_graph(augmentation):
    gpu = loader(augmentation, "cuda")
    held = [tensor.clone() for tensor in next(gpu.inputs(0, 1))]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the inputs are still being written
    with torch.cuda.stream(stream):
        gpu.prepare(*held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = gpu.prepare(*held)
    for inputs, cpu in zip(gpu.inputs(0, 5), loader(augmentation, "cpu").batches(0, 5), strict=True):
        for there, tensor in zip(held, inputs, strict=True):
            there.copy_(tensor)
        graph.replay()
        assert_alike(batch, cpu)


@pytest.mark.parametrize("in_memory", [True, False])
def test_evaluation_agrees_with_the_cpu(in_memory):
    size = Preprocessing(size_px=(24, 24))
    for a, b in zip(
        EvalLoader(Noise(in_memory), size, 64, "cuda"), EvalLoader(Noise(in_memory), size, 64), strict=True
    ):
        torch.testing.assert_close(a.images.cpu(), b.images)


def test_copies_arrive_whole_while_the_gpu_is_busy():
    """Each is compared where it is used, behind much other work of the same stream."""
    busy = torch.randn(2048, 2048, device="cuda")
    gpu, cpu = (loader(PLAIN, device, in_memory=False, workers=2) for device in ("cuda", "cpu"))
    wrong = torch.zeros((), device="cuda")
    expected = [tuple(tensor.cuda() for tensor in inputs) for inputs in cpu.inputs(0, 12)]
    for inputs, wanted in zip(gpu.inputs(0, 12), expected, strict=True):
        for _ in range(20):
            busy = torch.nn.functional.normalize(busy @ busy)
        for one, other in zip(inputs, wanted, strict=True):
            wrong += (one != other).sum()
        del inputs, one
    assert float(wrong) == 0


def test_the_host_is_few_steps_ahead():
    from vitreous.data.arriving import MOST_AHEAD, Arriving

    arriving, ends, x = Arriving(torch.device("cuda")), [], torch.randn(4096, 4096, device="cuda")
    for _ in range(12):
        for _ in range(20):
            x = torch.nn.functional.normalize(x @ x)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        arriving.keep_pace()
        assert sum(not end.query() for end in ends) <= MOST_AHEAD


# ---- Masks


class Masked(Noise):
    """The same, with a mask for each; read in two sizes where they are not in memory."""

    def __init__(self, in_memory: bool) -> None:
        super().__init__(in_memory)
        masks = self._pictures[..., 0].astype(np.int16) % 5 - 1
        self._masks = masks if in_memory else [mask[: 24 + 8 * (n % 2)] for n, mask in enumerate(masks)]
        held = PixelLabels(HeldMasks(self._masks))
        self.targets = held.held([{"mask": mask} for mask in self._masks]) if in_memory else held

    def read(self, index: int) -> np.ndarray:
        return self._pictures[index][: len(self._masks[index])]


ZOOM = Augmentation(crop=CropSettings(method="zoom"), colour=ColourSettings(brightness=0.2))


def masked_loader(device: str, in_memory: bool) -> TrainLoader:
    view = ZOOM.build(Preprocessing(size_px=(28, 36)))
    return TrainLoader(Masked(in_memory), [view], batch_size=64, seed=1, device=device)


def assert_masks_equal(gpu: Batch, cpu: Batch) -> None:
    assert torch.equal(gpu.targets["mask"].cpu(), cpu.targets["mask"])
    assert torch.equal(gpu.extent.cpu(), cpu.extent) and torch.equal(gpu.size.cpu(), cpu.size)
    assert ((gpu.images.cpu() - cpu.images).abs() <= 2 / 255 + 1e-4).double().mean() > 0.999


@pytest.mark.parametrize("in_memory", [True, False])
def test_masks_move_on_the_gpu_as_on_the_cpu(in_memory):
    gpu, cpu = masked_loader("cuda", in_memory), masked_loader("cpu", in_memory)
    for a, b in zip(gpu.batches(0, 4), cpu.batches(0, 4), strict=True):
        assert_masks_equal(a, b)


@pytest.mark.parametrize("in_memory", [True, False])
def test_masks_in_a_cuda_graph(in_memory):
    """Pictures that are read fit it too: what workers hand over has fixed shapes."""
    gpu = masked_loader("cuda", in_memory)
    held = [tensor.clone() for tensor in next(gpu.inputs(0, 1))]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the inputs are still being written
    with torch.cuda.stream(stream):
        gpu.prepare(*held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = gpu.prepare(*held)
    for inputs, cpu in zip(gpu.inputs(0, 4), masked_loader("cpu", in_memory).batches(0, 4), strict=True):
        for there, tensor in zip(held, inputs, strict=True):
            there.copy_(tensor)
        graph.replay()
        assert_masks_equal(batch, cpu)


# ---- Boxes


def boxed_loader(device: str, in_memory: bool) -> TrainLoader:
    view = ZOOM.build(Preprocessing(size_px=(56, 72), crop="letterbox"))
    source = RenderedObjects("val")
    return TrainLoader(InMemory(source) if in_memory else source, [view], batch_size=64, seed=1, device=device)


@pytest.mark.parametrize("in_memory", [True, False])
def test_boxes_move_on_the_gpu_as_on_the_cpu_compiled_too(in_memory):
    gpu, cpu = boxed_loader("cuda", in_memory), boxed_loader("cpu", in_memory)
    compiled = torch.compile(gpu.prepare, fullgraph=True)
    for inputs, there in zip(gpu.inputs(0, 3), cpu.batches(0, 3), strict=True):
        for batch in (gpu.prepare(*inputs), compiled(*inputs)):
            assert torch.equal(batch.targets["classes"].cpu(), there.targets["classes"])
            torch.testing.assert_close(batch.targets["boxes"].cpu(), there.targets["boxes"], atol=1e-3, rtol=0)
            assert torch.equal(batch.extent.cpu(), there.extent)


def test_boxes_in_evaluation_agree_with_the_cpu():
    way, source = Preprocessing(size_px=(56, 72), crop="letterbox"), RenderedObjects("val")
    for a, b in zip(EvalLoader(source, way, 64, "cuda"), EvalLoader(source, way, 64), strict=True):
        torch.testing.assert_close(a.targets["boxes"].cpu(), b.targets["boxes"], atol=1e-3, rtol=0)
