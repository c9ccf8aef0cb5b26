"""Two-way maps between the tensors of a foreign layout and ours.

A format is a list of rules. One list serves both ways, so that what is read can be written back, bit by bit.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vitreous.errors import UserError

Change = Callable[..., tuple[Tensor, ...]]
FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})  # that weights may have


@dataclass(frozen=True)
class Rule:
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Change  # theirs -> ours
    write: Change  # ours -> theirs
    optional: bool = False  # where it is absent, nothing is missing
    otherwise: Change | None = None  # what is written where an optional one of ours is absent
    aside: str | None = None  # pattern of the names that are known, and of no use here


def _as_it_is(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


def same(ours: str, theirs: str) -> Rule:
    return Rule((ours,), (theirs,), _as_it_is, _as_it_is)


def layer(ours: str, theirs: str, bias: bool = True) -> list[Rule]:
    """The weight and bias of a layer that both have alike."""
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in (("weight", "bias") if bias else ("weight",))]


def reshaped(ours: str, theirs: str, our_shape: Sequence[int], their_shape: Sequence[int]) -> Rule:
    return Rule(
        (ours,),
        (theirs,),
        lambda tensor: (_fitting(tensor, their_shape, theirs).reshape(tuple(our_shape)),),
        lambda tensor: (tensor.reshape(tuple(their_shape)),),
    )


def transposed(ours: str, theirs: str) -> Rule:
    """A matrix that they keep as (in, out)."""
    return Rule((ours,), (theirs,), lambda m: (m.T.contiguous(),), lambda m: (m.T.contiguous(),))


def joined(ours: str, theirs: Sequence[str]) -> Rule:
    """Several of theirs, one below the other in ours: query, key and value."""
    return Rule((ours,), tuple(theirs), lambda *parts: (torch.cat(parts),), lambda whole: whole.chunk(len(theirs)))


def repeated(ours: Sequence[str], theirs: str) -> Rule:
    """One of theirs that several layers of ours have, which therefore must be the same to be written."""

    def write(*tensors: Tensor) -> tuple[Tensor, ...]:
        if not all(one.is_meta or torch.equal(one, tensors[0]) for one in tensors):
            raise UserError(f"{theirs} is one for all layers, and this model's layers differ in it")
        return (tensors[0],)

    return Rule(tuple(ours), (theirs,), lambda tensor: (tensor,) * len(ours), write)


def carried(theirs: str, otherwise: Callable[[], Tensor] | None = None) -> Rule:
    """What our model has no use for (a mask token, a decoder), kept under `extra.` so that it can be written back.
    Where it never was, `otherwise` is written."""
    made = None if otherwise is None else lambda: (otherwise(),)
    return Rule((f"extra.{theirs}",), (theirs,), _as_it_is, _as_it_is, optional=True, otherwise=made)


def prefixed(rule: Rule, prefix: str) -> Rule:
    """The same where all of their names begin alike."""
    return replace(rule, theirs=tuple(prefix + name for name in rule.theirs))


def aside(pattern: str) -> Rule:
    """What such files may hold besides the model, an optimizer's state for one: left behind, and reported as that."""
    return Rule((), (), lambda: (), lambda: (), aside=pattern)


def computed(theirs: str, value: Callable[[], Tensor]) -> Rule:
    """What they store and we compute. On reading it must be what it should be; on writing it is made."""

    def check(tensor: Tensor) -> tuple[Tensor, ...]:
        expected = value()
        same = tensor.is_meta or torch.equal(tensor.to(expected.dtype), expected)  # outlines have no values
        if tensor.shape != expected.shape or not same:
            raise UserError(f"{theirs} is not what every model of this kind has there")
        return ()

    return Rule((), (theirs,), check, lambda: (value(),))


def _fitting(tensor: Tensor, shape: Sequence[int], name: str) -> Tensor:
    if tuple(tensor.shape) != tuple(shape):
        raise UserError(f"{name} has the shape {tuple(tensor.shape)}, where {tuple(shape)} is expected")
    return tensor


# ---- Applying them


@dataclass
class Report:
    """Everything a file holds, accounted for, by their names."""

    used: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)  # known to come with such files, and of no use here
    reshaped: list[str] = field(default_factory=list)  # ours: position tables and patches fitted to another size
    assumed: list[str] = field(default_factory=list)  # what the contents cannot tell, and how it was taken, in lines

    @property
    def is_exact(self) -> bool:
        return not self.unused and not self.missing

    def mismatch(self) -> str:
        """What does not fit, in a few words."""
        found = [
            f"{len(names):,} tensors are {kind} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
            for kind, names in (("missing", self.missing), ("not part of it", self.unused))
            if names
        ]
        return "; ".join(found)


def apply_read(rules: Sequence[Rule], theirs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Report]:
    """Our state dict, and what became of theirs. Whether a mismatch is an error is the caller's to say.

    Of outlines it makes outlines: what would be read is known before anything is.
    """
    ours: dict[str, Tensor] = {}
    report = Report()
    for rule in rules:
        absent = [name for name in rule.theirs if name not in theirs]
        if absent:
            report.missing += [] if rule.optional else absent
            continue
        ours |= zip(rule.ours, _read(rule, [theirs[name] for name in rule.theirs]), strict=True)
        report.used += rule.theirs
    rest = sorted(theirs.keys() - set(report.used))
    patterns = [rule.aside for rule in rules if rule.aside]
    for name in rest:
        known = any(re.match(pattern, name) for pattern in patterns)
        (report.aside if known else report.unused).append(name)
    return ours, report


def _read(rule: Rule, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1 and not kinds <= FLOATS:  # joined, they would pass for floats
        raise UserError(f"{rule.theirs[0]} and what belongs to it mix types of numbers; save all as float32")
    try:
        return rule.read(*tensors)
    except (RuntimeError, IndexError, ValueError):  # as torch says that shapes do not go together
        shapes = ", ".join(f"{name} {tuple(each.shape)}" for name, each in zip(rule.theirs[:3], tensors, strict=False))
        raise UserError(f"the shapes of {shapes} are not those of such a model") from None


def apply_write(rules: Sequence[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors. Every one of ours must have a place there."""
    theirs: dict[str, Tensor] = {}
    for rule in rules:
        absent = [name for name in rule.ours if name not in ours]
        if absent and rule.optional:
            theirs |= zip(rule.theirs, rule.otherwise(), strict=True) if rule.otherwise else ()
            continue
        if absent:
            raise UserError(f"the model has no {absent[0]}, which this format needs")
        theirs |= zip(rule.theirs, rule.write(*(ours[name] for name in rule.ours)), strict=True)
    placed = {name for rule in rules for name in rule.ours}
    # What another format's models carry along without our using it may stay behind.
    homeless = sorted(name for name in ours.keys() - placed if not name.startswith("extra."))
    if homeless:
        raise UserError(f"this format cannot store {homeless[0]} ({len(homeless)} tensors in all)")
    return theirs
