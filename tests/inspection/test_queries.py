"""Where queries look: DETR's and EoMT's attention as it is, and points of Deformable DETR spread over cells."""

import pytest
import torch

from vitreous.inspection.queries import cells_of, has_looks, points_on_cells, query_looks
from vitreous.models import ViTSettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.mask_queries import MaskQuerySettings

PX = (32, 64)


def built(**changes):
    torch.manual_seed(0)
    sizes = {"queries": 7, "width": 16, "heads": 2, "mlp_width": 16, "encoder_depth": 1, "decoder_depth": 2}
    encoder = ViTSettings.of(picture_px=PX, patch=8, width=16, depth=1, heads=2).build()
    return DetectSettings(**sizes | changes).build(encoder, ("a", "b")).eval()


@torch.inference_mode()
@pytest.mark.parametrize("decoder", ["detr", "deformable"])
def test_shares_of_the_picture(decoder):
    task, images = built(decoder=decoder), torch.randn(2, 3, *PX, generator=torch.Generator().manual_seed(1))
    extent = torch.tensor([[32, 64], [32, 24]])
    plain = task.predict(images, extent)
    found, looks = query_looks(task, PX, lambda: task.predict(images, extent))
    torch.testing.assert_close(found.logits, plain.logits, atol=0, rtol=0)
    assert looks.shape[:2] == (2, 7) and (looks >= 0).all()
    if decoder == "detr":
        assert looks.shape[2:] == (4, 8)  # patches
        torch.testing.assert_close(looks.sum((2, 3)), torch.ones(2, 7))
        assert (looks[1, :, :, 3:] == 0).all() and (looks[1, :, :, :3] > 0).all()  # padding is not looked at
    else:
        assert looks.shape[2:] == (16, 32) and (looks.sum((2, 3)) <= 1.0001).all() and looks.sum() > 7
    assert not task.head.decoder[-1].attention._forward_pre_hooks


@torch.inference_mode()
def test_queries_inside_a_vit_look_at_its_patches():
    torch.manual_seed(0)
    encoder = ViTSettings.of(picture_px=PX, patch=8, width=16, depth=2, heads=2).build()
    task = MaskQuerySettings(decoder="eomt", output="instances", queries=7, blocks=1).build(encoder, ("a", "b")).eval()
    images, last = torch.randn(2, 3, *PX), encoder.blocks[-1].attention
    with torch.no_grad():
        last.project_in.weight.mul_(3)  # far from even shares
    plain = task.predict(images)
    assert has_looks(task.head)
    found, looks = query_looks(task, PX, lambda: task.predict(images))
    torch.testing.assert_close(found.logits, plain.logits, atol=0, rtol=0)
    # By hand, from what goes into the last block: the tokens of class and patches, and the queries behind them.
    tokens = encoder.encode(*encoder.embed(images), depths=(1,)).depths[1]
    joined = encoder.blocks[-1].attention_norm(task.head.joined(tokens))
    queries, keys, _ = last.project_in(joined).view(2, 1 + 32 + 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
    shares = (queries[:, :, -7:] @ keys.mT / 8**0.5).softmax(-1).mean(1)[..., 1:33]
    torch.testing.assert_close(looks, shares.view(2, 7, 4, 8))
    assert not last._forward_pre_hooks


def test_points_lie_where_they_are():
    places = torch.tensor([[[[0.125, 0.5]], [[0.25, 0.5]], [[1.5, 0.5]]]])  # (1, 3, 1, 2)
    found = points_on_cells(places, torch.full((1, 3, 1), 2.0), (1, 4))
    assert found[0, :, 0].tolist() == [[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert cells_of((480, 640)) == (24, 32) and cells_of((1, 1000)) == (1, 32)
