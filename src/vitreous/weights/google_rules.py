"""Rules for Google's arrays: which are (in, out) where ours are (out, in), with their own names for a norm's parts."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.models import ResNetStem
from vitreous.weights.card import Card
from vitreous.weights.rules import Rule, same


def converted(ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    return Rule((ours,), (theirs,), lambda a: (read(a).contiguous(),), lambda a: (write(a).contiguous(),))


def batched(ours: str, theirs: str) -> Rule:
    """They keep an axis of length 1 before it."""
    return converted(ours, theirs, lambda a: a[0], lambda a: a[None])


def dense(ours: str, theirs: str) -> list[Rule]:
    """Their matrices are (in, out)."""
    return [
        converted(f"{ours}.weight", f"{theirs}/kernel", lambda m: m.T, lambda m: m.T),
        same(f"{ours}.bias", f"{theirs}/bias"),
    ]


def conv(ours: str, theirs: str) -> Rule:
    """Their kernels are (height, width, in, out)."""
    return converted(f"{ours}.weight", theirs, lambda k: k.permute(3, 2, 0, 1), lambda k: k.permute(2, 3, 1, 0))


def patches(patch: tuple[int, int]) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The same, kept by us as one matrix."""
    return (
        lambda kernel: kernel.permute(3, 2, 0, 1).flatten(1),
        lambda matrix: matrix.reshape(len(matrix), -1, *patch).permute(2, 3, 1, 0),
    )


def norm(ours: str, theirs: str, names: tuple[str, str] = ("scale", "bias")) -> list[Rule]:
    return [
        Rule((f"{ours}.{kind}",), (f"{theirs}/{name}",), lambda a: (a.flatten(),), lambda a: (a,))
        for kind, name in zip(("weight", "bias"), names, strict=True)
    ]


def four_axes(rules: list[Rule]) -> Rule:
    """Released hybrids keep the vectors of group norms as (1, 1, 1, width). That they do is kept with the weights, so
    that they are written back like this; a file of flat vectors never comes here."""
    norms = [rule for rule in rules if re.match(r"(.*/)?gn\w*/", rule.theirs[0])]

    def read(*theirs: Tensor) -> tuple[Tensor, ...]:
        return torch.tensor(theirs[0].ndim), *(one.flatten() for one in theirs)

    def write(axes: Tensor, *ours: Tensor) -> tuple[Tensor, ...]:
        return tuple(one.reshape(*(1,) * (int(axes) - 1), -1) for one in ours)

    ours, theirs = ([names[0] for names in side] for side in zip(*((r.ours, r.theirs) for r in norms), strict=True))
    return Rule(("extra.group_norm_axes", *ours), tuple(theirs), read, write, optional=True)


def stacked(rules: list[Rule]) -> Rule:
    """The same layer of all blocks, in one array each of theirs."""

    def read(*stacks: Tensor) -> tuple[Tensor, ...]:
        if {len(stack) for stack in stacks} != {len(rules)}:
            raise UserError(f"{rules[0].theirs[0]} does not hold {len(rules)} blocks")
        return tuple(rule.read(*(stack[i] for stack in stacks))[0] for i, rule in enumerate(rules))

    def write(*ours: Tensor) -> tuple[Tensor, ...]:
        apart = [rule.write(one) for rule, one in zip(rules, ours, strict=True)]
        return tuple(torch.stack(layer) for layer in zip(*apart, strict=True))

    return Rule(tuple(rule.ours[0] for rule in rules), rules[0].theirs, read, write)


def units(depths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Stages counted from 1, units from 0."""
    return [(i, j) for i, depth in enumerate(depths, start=1) for j in range(depth)]


def stem_rules(stem: ResNetStem) -> list[Rule]:
    ours = "encoder.stem.trunk.levels"
    rules = [conv(f"{ours}.0.0.conv", "conv_root/kernel"), *norm(f"{ours}.0.0.norm", "gn_root")]
    for i, j in units(stem.depths):
        unit, theirs = f"{ours}.{i}.{j}", f"block{i}/unit{j + 1}"
        for number in (1, 2, 3):
            rules.append(conv(f"{unit}.conv{number}", f"{theirs}/conv{number}/kernel"))
            rules += norm(f"{unit}.norm{number}", f"{theirs}/gn{number}")
        if j == 0:
            rules.append(conv(f"{unit}.project", f"{theirs}/conv_proj/kernel"))
            rules += norm(f"{unit}.project_norm", f"{theirs}/gn_proj")
    return rules


def head_rules(card: Card) -> list[Rule]:
    if card.classifier is None:
        return []
    if card.classifier.head == "tanh":
        return [*dense("head.hidden", "pre_logits"), *dense("head.output", "head")]
    if card.classifier.head != "linear":
        raise UserError(f"this format cannot store a {card.classifier.head} head")
    return dense("head", "head")
