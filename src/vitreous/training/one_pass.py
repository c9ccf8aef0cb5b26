"""Clipping, AdamW, the check for NaN and the average of the weights in one launch, on a GPU.

In plain torch each goes over all parameters separately: a factor on the gradients, the moments and weights, and three
passes of an average. Optimizer and Average define the result, and run everywhere else; their state stays where it is,
so that a run may change from one to the other at any step.
"""

import torch
from torch import Tensor

from vitreous.nn import kernels
from vitreous.objectives.base import Objective
from vitreous.training.averages import Average
from vitreous.training.optim import Optimizer, clip_factor


class OnePass:
    """For an Optimizer that is AdamW alone, and the Average of its weights."""

    def __init__(self, optimizer: Optimizer, average: Average | None) -> None:
        from vitreous.nn.kernels.adamw import pieces

        self.optimizer, self.average = optimizer, average
        (adam,) = optimizer.parts
        groups = adam.param_groups
        self.parameters = [p for group in groups for p in group["params"]]
        states, device = [adam.state[p] for p in self.parameters], self.parameters[0].device
        # All step counts are one tensor; checkpoints see views of it.
        self.counts = torch.stack([state["step"] for state in states])
        for state, count in zip(states, self.counts.unbind(), strict=True):
            state["step"] = count
        moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        shadows = [] if average is None else [average.leave_to_another(self.parameters)]
        self.stay = [[tensor.data_ptr() for tensor in row] for row in (*moments, *shadows)]
        self.stay += [[0] * len(states)] if average is None else []
        sizes = [p.numel() for p in self.parameters]
        self.sizes, self.cut = torch.tensor(sizes, device=device), pieces(sizes, device)
        self.groups = torch.tensor([i for i, group in enumerate(groups) for _ in group["params"]], device=device)
        self.decays = torch.tensor([float(group["weight_decay"]) for group in groups], device=device)[self.groups]
        self.log_betas = torch.tensor(groups[0]["betas"], dtype=torch.float64, device=device).log()[:, None]
        self.numbers = dict(zip(("beta1", "beta2"), groups[0]["betas"], strict=True), epsilon=groups[0]["eps"])
        # A captured graph copies from here at every replay; nothing may be allocated during the capture.
        self.for_a_graph = torch.zeros(5, len(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
        self.known: list[list[int]] = []
        self.addresses = self.for_a_graph

    @classmethod
    def of(cls, objective: Objective, optimizer: Optimizer, average: Average) -> "OnePass | None":
        """None if anything does not meet the kernel's requirements."""
        parts = optimizer.parts
        if len(parts) != 1 or not isinstance(parts[0], torch.optim.AdamW) or optimizer.is_sharded:
            return None
        parameters = [p for group in parts[0].param_groups for p in group["params"]]
        if not all(kernels.pays("adamw", p) and fits(p, p) for p in parameters):
            return None
        # `after_step` may change weights once more, and the average must include that.
        is_last = type(objective).after_step is Objective.after_step
        return cls(optimizer, average if average.is_on and is_last else None)

    @torch.no_grad()
    def step(self, norm: Tensor, max_norm: float | None, bad: Tensor) -> None:
        """Does to these weights what Optimizer.clip (except for the norm), Optimizer.step and Average.update do."""
        from vitreous.nn.kernels.adamw import step

        addresses = self._addresses()
        is_bad = bad.to(torch.float32)
        factor = torch.ones_like(norm) if max_norm is None else clip_factor(norm, max_norm)
        share = torch.zeros_like(norm) if self.average is None else self.average.next_share()
        self.counts += (addresses[1] != 0) * (1 - is_bad)
        young = -torch.expm1(self.log_betas * self.counts.double())  # 1 - beta ** count
        factors = torch.cat([torch.stack([self.optimizer.rates[self.groups], self.decays]), young.float()])
        step(addresses, self.cut, self.sizes, factors, torch.stack([factor, is_bad, share]), **self.numbers)

    def _addresses(self) -> Tensor:
        """(5, P) on the device: addresses of weights, gradients, both moments and averages; 0 if there is none."""
        for p in self.parameters:
            if p.grad is not None and not fits(p.grad, p):
                p.grad = torch.empty_like(p).copy_(p.grad)
        gradients = [0 if p.grad is None else p.grad.data_ptr() for p in self.parameters]
        now = [[p.data_ptr() for p in self.parameters], gradients, *self.stay]
        device = self.sizes.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.for_a_graph.copy_(torch.tensor(now))
            return self.for_a_graph.to(device, non_blocking=True)
        if now != self.known:
            fresh = torch.tensor(now, pin_memory=device.type == "cuda")
            self.known, self.addresses = now, fresh.to(device, non_blocking=True)
        return self.addresses


def fits(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether its elements are contiguous in the order of the parameter's, and can be read 16 bytes at a time."""
    is_dense = parameter.is_contiguous() and tensor.stride() == parameter.stride()
    return is_dense and tensor.dtype == torch.float32 and tensor.data_ptr() % 16 == 0
