"""A step of masks by queries on a GPU: the host waits for nothing, the whole of it is one CUDA graph, and its gradients
are the same in every run."""

from dataclasses import replace

import pytest
import torch

from vitreous.batch import Batch
from vitreous.models import ResNetV1Settings, ViTSettings
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQueries, MaskQuerySettings, PixelSettings
from vitreous.training.graph import GraphedStep

pytestmark = pytest.mark.gpu

SETTINGS = MaskQuerySettings(
    queries=12,
    width=32,
    heads=2,
    mlp_width=48,
    decoder_depth=3,
    pixel=PixelSettings(mask_width=32, mlp_width=48, depth=1, looks=2),
    blocks=2,
    points=PointSettings(number=200),
)
KINDS = {
    "mask2former": {},
    "mask2former instances": {"output": "instances"},
    "eomt": {"decoder": "eomt"},
    "eomt instances": {"decoder": "eomt", "output": "instances"},
}
NAMES = ("mask", "masks", "classes", "crowd")
every_kind = pytest.mark.parametrize("kind", KINDS)


def network(kind: str) -> MaskQueries:
    torch.manual_seed(0)
    if "eomt" in kind:
        encoder = ViTSettings(picture_px=(128, 128), patch=16, width=64, depth=3, heads=2).build()
    else:
        encoder = ResNetV1Settings(picture_px=(128, 128), unit="basic", depths=(1, 1, 1, 1), base_width=8).build()
    return replace(SETTINGS, **KINDS[kind]).build(encoder, ("a", "b", "c")).cuda()


def batch_of(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    targets = {
        "mask": torch.randint(-1, 3, (4, 16, 16), generator=draw).repeat_interleave(8, 1).repeat_interleave(8, 2),
        "masks": torch.randint(64, (4, 128, 128, 1), dtype=torch.uint8, generator=draw),  # six objects, a bit each
        "classes": torch.randint(-1, 3, (4, 6), generator=draw),
        "crowd": torch.zeros(4, 6, dtype=torch.bool),
    }
    images = torch.randn(4, 3, 128, 128, generator=draw)
    return Batch((images,), targets, torch.arange(4), torch.arange(4) * 7 + seed).to("cuda")


@every_kind
def test_the_host_waits_for_nothing(kind):
    task, batch, progress = network(kind), batch_of(0), torch.zeros((), device="cuda")
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
    task, progress = network(kind), torch.full((), 0.5, device="cuda")
    whole = torch.compile(task, fullgraph=True, dynamic=False) if compiled else task
    loss, ids = torch.zeros((), device="cuda"), torch.arange(4, device="cuda")

    def step(images, keys, *targets):
        found = whole(Batch((images,), dict(zip(NAMES, targets, strict=True)), ids, keys), progress)["loss"]
        found.backward()
        loss.copy_(found.detach())

    graphed = GraphedStep(step)
    for seed in range(6):
        batch = batch_of(seed)
        graphed(batch.images, batch.keys, *(batch.targets[name] for name in NAMES))
        with torch.no_grad():
            expected = task(batch, progress)["loss"]
        # Logits near 0 may fall on either side: a query then looks elsewhere.
        torch.testing.assert_close(loss, expected, atol=2e-2, rtol=2e-2)


@every_kind
def test_gradients_are_the_same_in_every_run(kind):
    found = []
    for _ in range(2):
        task = network(kind)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            task(batch_of(1), torch.full((), 0.5, device="cuda"))["loss"].backward()
        found.append({name: p.grad for name, p in task.head.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and len(found[0]) > 10
    assert not [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
