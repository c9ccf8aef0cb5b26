"""A detector's step on a GPU: the host waits for nothing, and the whole of it is one CUDA graph."""

from dataclasses import replace

import pytest
import torch

from vitreous.batch import Batch
from vitreous.models import ResNetV1Settings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detector import Detect
from vitreous.training.graph import GraphedStep

pytestmark = pytest.mark.gpu

SETTINGS = DetectSettings(
    queries=12, width=32, heads=4, mlp_width=48, encoder_depth=1, decoder_depth=2, points=2, dropout=0.0
)
KINDS = {
    "detr": {"decoder": "detr"},
    "refined": {},
    "two stages": {"two_stage": True},
    "centres": {"decoder": "centres"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def detector(kind: str) -> Detect:
    torch.manual_seed(0)
    encoder = ResNetV1Settings(picture_px=(128, 128), unit="basic", depths=(1, 1, 1, 1), base_width=8)
    return replace(SETTINGS, **KINDS[kind]).build(encoder.build(), ("a", "b", "c")).cuda()


def batch_of(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    first = torch.rand(4, 6, 2, generator=draw) * 60
    boxes = torch.cat([first, first + 8 + 30 * torch.rand(4, 6, 2, generator=draw)], dim=-1)
    classes = torch.randint(-1, 3, (4, 6), generator=draw)
    targets = {"boxes": boxes, "classes": classes, "crowd": torch.zeros(4, 6, dtype=torch.bool)}
    extent = torch.tensor([[128, 128], [128, 100], [110, 128], [128, 128]])
    images = torch.randn(4, 3, 128, 128, generator=draw)
    return Batch((images,), targets, torch.arange(4), torch.arange(4), extent=extent).to("cuda")


@every_kind
def test_the_host_waits_for_nothing(kind):
    task, batch, progress = detector(kind), batch_of(0), torch.zeros((), device="cuda")
    task(batch, progress)["loss"].backward()  # kernels are compiled and tuned
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        task(batch, progress)["loss"].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_kind
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_is_one_cuda_graph(kind, compiled):
    task, progress = detector(kind), torch.zeros((), device="cuda")
    whole = torch.compile(task, fullgraph=True, dynamic=False) if compiled else task
    loss = torch.zeros((), device="cuda")
    names = ("boxes", "classes", "crowd")

    def step(images, extent, *targets):
        batch = Batch((images,), dict(zip(names, targets, strict=True)), ids, ids, extent=extent)
        found = whole(batch, progress)["loss"]
        found.backward()
        loss.copy_(found.detach())

    ids, graphed = torch.arange(4, device="cuda"), GraphedStep(step)
    for seed in range(6):
        batch = batch_of(seed)
        graphed(batch.images, batch.extent, *(batch.targets[name] for name in names))
        with torch.no_grad():
            expected = task(batch, progress)["loss"]
        torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)
    assert graphed.graph is not None


@every_kind
def test_as_on_the_host(kind):
    task, batch = detector(kind).eval(), batch_of(0)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        found = task.predict(batch.images, batch.extent)
        expected = task.cpu().predict(batch.images.cpu(), batch.extent.cpu())
    torch.testing.assert_close(found.boxes.cpu(), expected.boxes, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.logits.cpu(), expected.logits, rtol=1e-3, atol=1e-3)
