"""Muon: momentum whose update is made orthogonal, for the matrices inside a network (Jordan et al. 2024)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The quintic of Jordan et al. 2024: steepest at zero, so that five rounds bring every singular value near one.
QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


class Matrix(NamedTuple):
    """A parameter that Muon updates, and how."""

    parameter: nn.Parameter  # of two axes or more; the axes after the first are flattened into columns
    parts: int = 1  # matrices stacked in its rows (3 for a fused query, key and value), each orthogonalised separately
    scale: float = 1.0  # of the learning rate


def orthogonal(stack: Tensor) -> Tensor:
    """(K, r, c) -> (K, r, c) bf16: each U S V' becomes about U V', by Newton-Schulz iterations on all at once."""
    a, b, c = QUINTIC
    norm = torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    x: Tensor = (stack / norm).to(torch.bfloat16)
    tall = stack.shape[1] > stack.shape[2]
    if tall:  # the Gram matrix of the shorter side is the smaller one
        x = x.mT
    for _ in range(ROUNDS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def moved(
    weights: Tensor,
    gradients: Tensor,
    moments: Tensor,
    *,
    rates: Tensor,  # (K, 1, 1)
    bad: Tensor,  # 0-d bool: leave weights and moments as they are
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> tuple[Tensor, Tensor]:
    """New weights and moments of a stack (K, r, c)."""
    new_moments = moments.lerp(gradients, 1 - momentum)
    direction = orthogonal(gradients.lerp(new_moments, momentum) if nesterov else new_moments)
    # Root mean square of AdamW's updates, so that one learning rate serves both (Liu et al. 2025, section 2.2).
    matched = 0.2 * math.sqrt(max(weights.shape[1:]))
    new_weights = weights * (1 - rates * weight_decay) - direction * (rates * matched)
    return torch.where(bad, weights, new_weights), torch.where(bad, moments, new_moments)


class _Stack:
    """Matrices of one shape, updated together. Tall ones are transposed, so that a block's two dense layers share a
    stack."""

    def __init__(self, matrices: Sequence[Matrix], shape: tuple[int, int]) -> None:
        first = matrices[0].parameter
        self.matrices = matrices
        counts = [matrix.parts for matrix in matrices]
        scales = [matrix.scale for matrix in matrices for _ in range(matrix.parts)]
        self.scales = torch.tensor(scales, device=first.device)[:, None, None]
        self.moments = torch.zeros(sum(counts), *shape, dtype=first.dtype, device=first.device)
        self.counts = counts

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors shaped like the parameters -> (K, r, c)."""
        views = []
        for matrix, tensor in zip(self.matrices, tensors, strict=True):
            view = tensor.reshape(matrix.parts, len(tensor) // matrix.parts, -1)
            views.append(view.mT if _on_its_side(matrix) else view)
        return torch.cat(views)

    def scatter(self, stack: Tensor) -> list[Tensor]:
        """The reverse of `gather`, as views."""
        pieces = zip(self.matrices, torch.split(stack, self.counts), strict=True)
        return [(p.mT if _on_its_side(m) else p).reshape(m.parameter.shape) for m, p in pieces]


def _on_its_side(matrix: Matrix) -> bool:
    rows = len(matrix.parameter)
    # Parts are stacked in rows, and would not be views of the stack if each were transposed.
    return matrix.parts == 1 and rows > matrix.parameter.numel() // rows


class Muon(torch.optim.Optimizer):
    """Parameters of equal shape go through every operation as one batch: a few kernels for a whole network.

    Like torch's fused optimizers, it skips a step if its attribute `found_inf` is a tensor that is not 0.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Sequence[Matrix],
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        compile: bool = False,  # the arithmetic of a stack as one compiled function
    ) -> None:
        super().__init__([matrix.parameter for matrix in matrices], {"lr": lr, "weight_decay": weight_decay})
        self._options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        self._moved: Callable[..., tuple[Tensor, Tensor]] = torch.compile(moved, dynamic=False) if compile else moved
        kinds: dict[Any, list[Matrix]] = {}
        for matrix in matrices:
            weight = matrix.parameter
            rows = len(weight) // matrix.parts
            columns = weight.numel() // len(weight)
            shape = (columns, rows) if _on_its_side(matrix) else (rows, columns)
            kinds.setdefault((shape, weight.dtype, weight.device), []).append(matrix)
        self._stacks = [_Stack(members, kind[0]) for kind, members in kinds.items()]
        for stack in self._stacks:
            for matrix, moments in zip(stack.matrices, stack.scatter(stack.moments), strict=True):
                self.state[matrix.parameter]["momentum"] = moments  # a view: restore it by copying in place

    def load_state_dict(self, state_dict: Any) -> None:
        raise NotImplementedError("copy into the tensors of `state`: they are views of the stacks")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        lr = self.param_groups[0]["lr"]
        for stack in self._stacks:
            parameters: list[Tensor] = [matrix.parameter for matrix in stack.matrices]
            # A matrix that the loss does not reach gets a zero gradient, as the others in its stack do move.
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            bad = stack.scales.new_zeros(()) if self.found_inf is None else self.found_inf
            stacked = (stack.gather(parameters), stack.gather(gradients), stack.moments)
            weights, moments = self._moved(*stacked, rates=stack.scales * lr, bad=bad != 0, **self._options)
            stack.moments.copy_(moments)
            torch._foreach_copy_(parameters, stack.scatter(weights))
