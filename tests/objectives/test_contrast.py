"""The losses of pictures and texts, against those of open_clip and of transformers."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.objectives.contrast import sigmoid_contrast, softmax_contrast
from vitreous.weights.peers import imported


def pairs(num=12, width=8):
    torch.manual_seed(0)
    return [torch.randn(num, width, requires_grad=True) for _ in range(2)]


def with_gradients(loss, *leaves):
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def test_the_softmax_is_open_clips_and_transformers():
    pictures, texts = pairs()
    log_scale = torch.tensor(2.3, requires_grad=True)
    leaves = (pictures, texts, log_scale)
    unit = [F.normalize(one, dim=1) for one in (pictures, texts)]
    ours = with_gradients(softmax_contrast(*unit, log_scale.exp()), *leaves)
    unit = [F.normalize(one, dim=1) for one in (pictures, texts)]
    theirs = with_gradients(imported("open_clip").ClipLoss()(*unit, log_scale.exp()), *leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    peer = imported("transformers", "transformers.models.clip.modeling_clip")
    similar = log_scale.exp() * unit[1] @ unit[0].T
    torch.testing.assert_close(ours[0], peer.image_text_contrastive_loss(similar).detach())


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_the_sigmoid_is_open_clips_whatever_the_chunk(chunk):
    pictures, texts = pairs()
    log_scale, bias = torch.tensor(2.3, requires_grad=True), torch.tensor(-4.0, requires_grad=True)
    leaves = (pictures, texts, log_scale, bias)
    unit = [F.normalize(one, dim=1) for one in (pictures, texts)]
    ours = with_gradients(sigmoid_contrast(*unit, log_scale.exp(), bias, chunk), *leaves)
    unit = [F.normalize(one, dim=1) for one in (pictures, texts)]
    theirs = with_gradients(imported("open_clip", "open_clip.loss").SigLipLoss()(*unit, log_scale.exp(), bias), *leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def largest_kept(chunk, num=64):
    """Numbers in the largest tensor that is kept for the way back."""
    pictures, texts = pairs(num, width=4)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        sigmoid_contrast(pictures, texts, torch.tensor(10.0), torch.tensor(-10.0), chunk)
    return max(sizes)


def test_memory_grows_with_the_batch_and_not_with_its_square():
    assert largest_kept(chunk=64) == 64 * 64
    assert largest_kept(chunk=8) == 64 * 4  # the pictures themselves


def test_similarities_are_in_float32_under_autocast():
    pictures, texts = (F.normalize(one.detach(), dim=1) for one in pairs())
    scale = torch.tensor(100.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = softmax_contrast(pictures, texts, scale)
    torch.testing.assert_close(found, softmax_contrast(pictures, texts, scale))
