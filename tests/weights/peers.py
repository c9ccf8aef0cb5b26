"""What every proof against a peer needs: random values everywhere, and a distance relative to the largest value."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.formats import Format, Given


def learned_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that training changes: the running statistics of batch norms. Index and position tables are constants."""
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield name, buffer


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> None:
    """Give every parameter and learned buffer a random value, so that nothing hides at its initial value.

    Matrices are scaled to keep activations of order one; vectors (norms, biases, scales) stay near one half, with signs
    from the values themselves: a one or a zero is never left anywhere.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    for name, parameter in module.named_parameters():
        values = draw(parameter)
        if parameter.ndim >= 2 and "token" not in name and "pos" not in name:
            values /= parameter[0].numel() ** 0.5
        else:
            values = values * 0.3 + (0.7 if name.endswith("weight") else 0.0)
        parameter.copy_(values)
    for name, buffer in learned_buffers(module):
        buffer.copy_(draw(buffer).abs() + 0.5 if name.endswith("var") else draw(buffer) * 0.3)


def relative_distance(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b| / max |b|."""
    assert ours.shape == theirs.shape, f"shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_close_relative(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """max |a - b| / max |b| <= tolerance; also false where anything is not finite."""
    distance = relative_distance(ours, theirs)
    assert distance <= tolerance, f"max|a-b|/max|b| is {distance:.3g}, more than {tolerance:.3g}"


def assert_bit_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same names, and under each the same type, shape and bits."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        other = found[name]
        assert other.dtype == tensor.dtype and other.shape == tensor.shape, name
        assert torch.equal(other, tensor), name


def converted(
    format: Format, peer: nn.Module, documents: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
) -> tuple[Card, nn.Module]:
    """The peer's weights in a model of ours, everything in its file accounted for, and nothing lost on the way back."""
    theirs = {name: tensor.clone() for name, tensor in peer.state_dict().items()}
    given = Given(theirs, documents or {}, "a peer")
    assert formats.recognised(given).name == format.name
    card, weights, report = formats.read(given, format, size)
    assert report.is_exact, report.mismatch()
    encoder = card.model.build()
    model = encoder if card.task is None else card.task.build(encoder, card.classes)
    prefix = "encoder." if card.task is None else ""
    model.to(next(iter(weights.values())).dtype)
    model.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if not n.startswith("extra.")})
    ours = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    extra = {name: tensor for name, tensor in weights.items() if name.startswith("extra.")}
    back = formats.write(card, ours | extra, format)
    assert_bit_equal(back.tensors, theirs)
    peer.load_state_dict(dict(back.tensors))
    # What is written is read as the same model.
    assert format.card(Given(back.tensors, json.loads(json.dumps(back.documents)), "ours"), size).model == card.model
    return card, model.eval()
