"""Optimizers: which parameters are updated together, at what rate and with what decay, and how their state is kept.

Nothing here waits for the device: rates and step counters are tensors, and a flag on the device turns a step into
nothing. So a whole training step can be one CUDA graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.nn import shards
from vitreous.objectives.base import Objective
from vitreous.training.checkpoint import restore
from vitreous.training.muon import Matrix, Muon


@dataclass(frozen=True)
class Slot:
    """A parameter to train, and what its place in the network says about it."""

    name: str
    parameter: nn.Parameter  # what the optimizer updates: of a sharded one, the rows on this rank
    registered: nn.Parameter  # as in the network, with the gradient: the same object if it is not sharded
    weight: bool  # of a dense layer or a convolution; not a norm, bias, token or position
    inner: bool  # a weight inside a stage after the first: not of the stem, not of a head
    parts: int  # matrices stacked in its rows: 3 for a fused query, key and value
    scale: float  # of the learning rate, from layer-wise decay


def slots(objective: Objective, layer_decay: float = 1.0, encoder_rate: float = 1.0) -> list[Slot]:
    """Every parameter to train. Layer-wise decay as in BEiT (Bao et al. 2021, appendix): a head has the full rate, the
    last stage `layer_decay` times that, the stage before it the square, and so on down to the stem. What an encoder has
    outside its stages (a final norm) goes with its last stage. `encoder_rate`: a factor for the whole encoder."""
    stages = objective.learner.stages()
    depth = {p: len(stages) - 1 for p in objective.learner.parameters()}
    depth |= {p: index for index, stage in enumerate(stages) for p in stage.parameters()}
    inside = {p for stage in stages[1:] for p in stage.parameters()}
    found = []
    for name, p in objective.named_parameters():
        if not p.requires_grad:
            continue
        path, _, leaf = name.rpartition(".")
        module = objective.get_submodule(path)
        weight = leaf == "weight" and p.ndim >= 2 and not isinstance(module, nn.Embedding)
        scale = encoder_rate * layer_decay ** (len(stages) - depth[p]) if p in depth else 1.0
        moved = nn.Parameter(shards.local(p)) if shards.is_sharded(p) else p
        found.append(Slot(name, moved, p, weight, weight and p in inside, _parts(path, module), scale))
    if not found:
        raise UserError("nothing to train: every parameter of the model is frozen")
    return found


def _parts(path: str, module: nn.Module) -> int:
    """How many matrices a weight stacks, by its module's `num_fused`, or by the module's name in attention."""
    return int(getattr(module, "num_fused", 3 if path.rpartition(".")[2] == "project_in" else 1))


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """The factor that reduces the norm of gradients to at most `max_norm`."""
    # No comparison: a NaN must reach the caller, who decides what to do about it.
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


class Optimizer:
    """One or more torch optimizers as one, without host synchronisation.

    Their state exists from the start, at fixed addresses: a graph can be captured, and a checkpoint written, before the
    first step.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer], named: Sequence[Slot]) -> None:
        self._parts = list(parts)
        self._named = list(named)
        self._groups = [group for part in self._parts for group in part.param_groups]
        self._base = torch.tensor([float(group["lr"]) for group in self._groups], device=named[0].parameter.device)
        self._rates = self._base.clone()
        for index, group in enumerate(self._groups):
            group["lr"] = self._rates[index]  # a 0-d view: one kernel sets the rates of all groups

    def set_rate(self, multiplier: Tensor) -> None:
        """Every group's learning rate becomes its base rate times this 0-d tensor."""
        torch.mul(self._base, multiplier, out=self._rates)

    def step(self, bad: Tensor | None = None) -> None:
        """Update the weights; if the 0-d tensor `bad` is not 0, leave weights and state exactly as they are."""
        flag = None if bad is None else (bad != 0).to(torch.float32)
        for slot in self._named:
            if slot.registered is not slot.parameter:
                gradient = slot.registered.grad
                slot.parameter.grad = None if gradient is None else shards.local(gradient)
        for part in self._parts:
            part.found_inf = flag  # type: ignore[attr-defined]  # as torch's GradScaler does for fused optimizers
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)
        for slot in self._named:
            if slot.registered is not slot.parameter:
                slot.registered.grad = None

    @property
    def parts(self) -> list[torch.optim.Optimizer]:
        return list(self._parts)

    @property
    def rates(self) -> Tensor:
        """(G,) the current learning rates of all groups."""
        return self._rates

    @property
    def is_sharded(self) -> bool:
        return any(slot.registered is not slot.parameter for slot in self._named)

    def gradients(self) -> list[Tensor]:
        return [slot.registered.grad for slot in self._named if slot.registered.grad is not None]

    def norm(self) -> Tensor:
        """The norm of all gradients together, as a 0-d tensor."""
        gradients = self.gradients()
        return shards.total_norm(gradients) if gradients else torch.zeros_like(self._rates[0])

    def clip(self, max_norm: float | None) -> Tensor:
        """The norm of all gradients together, which are scaled down to `max_norm` if it is larger."""
        norm, gradients = self.norm(), self.gradients()
        if max_norm is not None and gradients:
            torch._foreach_mul_([shards.local(gradient) for gradient in gradients], clip_factor(norm, max_norm))
        return norm

    def state(self) -> dict[str, Tensor]:
        """The live tensors (not copies), named `parameter/moment`."""
        tensors = {}
        for slot in self._named:
            for part in self._parts:
                for key, value in part.state.get(slot.parameter, {}).items():
                    is_moment = value.shape == slot.parameter.shape
                    tensors[f"{slot.name}/{key}"] = shards.beside(value, slot.registered) if is_moment else value
        return tensors

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        restore(self.state(), state, of="optimizer")

    def describe(self) -> list[str]:
        """One line per group, for logs."""
        lines = []
        for group, base in zip(self._groups, self._base.tolist(), strict=True):
            count = sum(p.numel() for p in group["params"])
            owner = next(type(part).__name__ for part in self._parts if any(group is g for g in part.param_groups))
            lines.append(f"{owner}: {count:,} numbers, rate {base:.3g}, weight decay {group['weight_decay']:.3g}")
        return lines


@dataclass(frozen=True, kw_only=True)
class AdamWSettings:
    lr: float = 1e-3  # peak learning rate
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.1  # decoupled: weights shrink by learning rate times this, each step
    epsilon: float = 1e-8
    layer_decay: float = 1.0  # factor on the learning rate from each stage to the one before it; 1 = none
    encoder_rate: float = 1.0  # factor on the learning rate of the whole encoder; DETR: a tenth of the rest
    decay_vectors: bool = False  # let norms, biases, tokens and positions decay too

    def build(self, objective: Objective) -> Optimizer:
        """The optimizer of this objective, on its device."""
        found = slots(objective, self.layer_decay, self.encoder_rate)
        return Optimizer([_adamw(found, self)], found)


@dataclass(frozen=True, kw_only=True)
class SGDSettings:
    lr: float = 0.01  # peak learning rate
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0  # added to the gradient, as is usual for SGD: not decoupled
    layer_decay: float = 1.0  # factor on the learning rate from each stage to the one before it; 1 = none
    decay_vectors: bool = False  # let norms, biases, tokens and positions decay too

    def build(self, objective: Objective) -> Optimizer:
        """The optimizer of this objective, on its device."""
        found = slots(objective, self.layer_decay)
        groups = _groups(found, self)
        sgd = torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov, fused=True)
        if self.momentum:
            # Starting at zero, the first step equals torch's, and a skipped first step leaves nothing undefined.
            for slot in found:
                sgd.state[slot.parameter]["momentum_buffer"] = torch.zeros_like(slot.parameter)
        return Optimizer([sgd], found)


@dataclass(frozen=True, kw_only=True)
class MuonSettings:
    """Muon for the matrices inside the stages; AdamW for the stem, heads, norms, biases, tokens and positions."""

    lr: float = 1e-3  # peak learning rate of the matrices, on AdamW's scale
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1  # decoupled, for both
    split_qkv: bool = True  # orthogonalise query, key and value of a fused matrix separately
    kernels: bool = True  # also convolution kernels, each output's weights as one row
    layer_decay: float = 1.0  # factor on the learning rate from each stage to the one before it; 1 = none
    adam_lr: float = 1e-3  # peak learning rate of the rest
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    decay_vectors: bool = False  # let norms, biases, tokens and positions decay too
    compile: bool = False  # compile the arithmetic of Muon

    def build(self, objective: Objective) -> Optimizer:
        """The optimizer of this objective, on its device."""
        found = slots(objective, self.layer_decay)
        matrices = [s for s in found if s.inner and (s.parameter.ndim == 2 or (self.kernels and _is_kernel(s)))]
        taken = {s.name for s in matrices}
        rest = [s for s in found if s.name not in taken]
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            given = [Matrix(s.parameter, s.parts if self.split_qkv else 1, s.scale) for s in matrices]
            parts.append(
                Muon(
                    given,
                    lr=self.lr,
                    momentum=self.momentum,
                    nesterov=self.nesterov,
                    weight_decay=self.weight_decay,
                    compile=self.compile,
                )
            )
        if rest:
            parts.append(_adamw(rest, self._adam()))
        return Optimizer(parts, found)

    def _adam(self) -> AdamWSettings:
        return AdamWSettings(
            lr=self.adam_lr,
            beta1=self.adam_beta1,
            beta2=self.adam_beta2,
            epsilon=self.adam_epsilon,
            weight_decay=self.weight_decay,
            decay_vectors=self.decay_vectors,
        )


OptimizerSettings = AdamWSettings | SGDSettings | MuonSettings


def _is_kernel(slot: Slot) -> bool:
    # In a depthwise kernel each output reads one input: there is no matrix to orthogonalise.
    return slot.parameter.ndim == 4 and slot.parameter.shape[1] > 1


def _groups(found: Sequence[Slot], settings: AdamWSettings | SGDSettings) -> list[dict[str, Any]]:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for slot in found:
        decay = settings.weight_decay if slot.weight or settings.decay_vectors else 0.0
        groups.setdefault((slot.scale, decay), []).append(slot.parameter)
    return [{"params": p, "lr": settings.lr * scale, "weight_decay": decay} for (scale, decay), p in groups.items()]


def _adamw(found: Sequence[Slot], settings: AdamWSettings) -> torch.optim.Optimizer:
    on_gpu = found[0].parameter.is_cuda
    betas = (settings.beta1, settings.beta2)
    groups = _groups(found, settings)
    adam = torch.optim.AdamW(groups, betas=betas, eps=settings.epsilon, fused=True, capturable=on_gpu)
    for slot in found:
        p = slot.parameter
        adam.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        adam.state[p]["exp_avg"] = torch.zeros_like(p)
        adam.state[p]["exp_avg_sq"] = torch.zeros_like(p)
    return adam
