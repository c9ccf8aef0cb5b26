"""DINO: a student learns to agree with a slow copy of itself about crops of a picture (Caron et al. 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.models.base import Encoder
from vitreous.nn.gather import mean_over_ranks
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts, check_positive, check_shares
from vitreous.objectives.collapse import collapsed, spread
from vitreous.objectives.momentum import Momentum, ramp
from vitreous.objectives.multicrop import EVEN, GLOBAL, Prototypes, crossed, pooled

FEW = 1.5  # prototypes in use by a whole batch: below, all outputs are nearly the same
CAUSES = (
    "a teacher temperature above 0.07, a learning rate that is too high, a momentum that is too low for the batch "
    "(0.996 for 1024 pictures, 0.9995 for 256), too short a freeze of the last layer"
)


@dataclass(frozen=True, kw_only=True)
class DINOSettings:
    prototypes: int = 65_536  # outputs of the head; a few thousand suffice for small sets
    hidden: int = 2048  # width of the head's hidden layers
    bottleneck: int = 256  # width of the head before its last layer
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07  # lower is sharper
    teacher_temperature_start: float = 0.04  # rises linearly from here
    temperature_fraction: float = 0.1  # share of the run over which it rises: 30 epochs in the paper
    momentum: float = 0.996  # share of its weights that the teacher keeps per step at the start; it rises to 1
    centre_momentum: float = 0.9  # share that the centre of the teacher's outputs keeps of itself per step
    freeze_fraction: float = 0.01  # share of the run during which the head's last layer is frozen: one epoch of 100

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "DINO":
        check_counts(self, "prototypes", "hidden", "bottleneck")
        check_positive(self, "student_temperature", "teacher_temperature", "teacher_temperature_start")
        check_shares(self, "temperature_fraction", "momentum", "centre_momentum", "freeze_fraction")
        return DINO(encoder, self)


class Head(nn.Module):
    """Three dense layers, a bottleneck of unit length, and the prototypes, whose norm is fixed at 1 (section 3.1,
    appendix C)."""

    def __init__(self, width: int, hidden: int, bottleneck: int, num_prototypes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = Prototypes(bottleneck, num_prototypes)

    def forward(self, features: Tensor, frozen: Tensor | None = None) -> Tensor:
        scores: Tensor = self.prototypes(self.layers(features), frozen)
        return scores


class Network(nn.Module):
    """An encoder and its head; the teacher is a copy of both."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(images).pooled)
        return scores


class DINO(Objective):
    """The student sees all crops, the teacher the global ones. The teacher's outputs are centred, so that no prototype
    dominates, and sharpened, so that they do not become uniform; the two balance each other (section 3.1, 5.3)."""

    centre: Tensor  # (K,) moving mean of the teacher's scores
    summed: Tensor  # (K,) sum of the means of the parts of this step's batch
    num_parts: Tensor  # () number of these parts

    def __init__(self, encoder: Encoder, settings: DINOSettings) -> None:
        super().__init__()
        self.settings = settings
        head = Head(encoder.width, settings.hidden, settings.bottleneck, settings.prototypes)
        self.student = Network(encoder, head)
        self.teacher = Momentum(self.student)
        self.register_buffer("centre", torch.zeros(settings.prototypes))
        self.register_buffer("summed", torch.zeros(settings.prototypes))
        self.register_buffer("num_parts", torch.zeros(()))

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]  # the teacher remains: it is better than the student
        network = self.teacher.module
        assert isinstance(network, Network)
        return network.encoder

    @property
    def learner(self) -> Encoder:
        return self.student.encoder

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        features = pooled(self.student.encoder, batch.views)  # (V x B, D)
        scores = self.student.head(features, progress < self.settings.freeze_fraction)
        taught = self.teacher(torch.cat(batch.views[:GLOBAL]))  # (2 x B, K)
        temperature = self.temperature(progress)
        targets = ((taught - self.centre) / temperature).softmax(dim=1)
        logits = scores / self.settings.student_temperature
        loss = crossed(targets.view(GLOBAL, len(batch), -1), logits.view(len(batch.views), len(batch), -1))
        with torch.no_grad():
            # The centre moves after the step, by the mean of all parts of the batch and all ranks.
            self.summed += taught.mean(dim=0)
            self.num_parts += 1
            entropy = _entropy(targets).mean()
        return {
            "loss": loss,
            "teacher_entropy": entropy,
            "teacher_kl": loss.detach() - entropy,  # from the student's outputs: 0 if all are the same
            "prototypes_used": _entropy(targets.mean(dim=0)).exp(),
            "teacher_temperature": temperature,
            **spread(features[: len(batch)]),
        }

    def temperature(self, progress: Tensor) -> Tensor:
        """The teacher's."""
        s = self.settings
        risen = (progress / max(s.temperature_fraction, 1e-9)).clamp(max=1.0)
        return s.teacher_temperature_start + (s.teacher_temperature - s.teacher_temperature_start) * risen

    @torch.no_grad()
    def after_step(self, progress: Tensor) -> None:
        self.teacher.follow(self.student, ramp(self.settings.momentum, 1.0, progress))
        mean = mean_over_ranks(self.summed / self.num_parts)
        self.centre.lerp_(mean, 1 - self.settings.centre_momentum)
        self.summed.zero_()
        self.num_parts.zero_()

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        """Both ways to collapse (section 5.3): uniform outputs, or the same prototype for every picture."""
        s = self.settings
        entropy, largest = numbers["teacher_entropy"], math.log(s.prototypes)
        # Uniform outputs mean nothing during the warm-up: those of random weights are uniform too.
        is_warm = numbers["teacher_temperature"] >= s.teacher_temperature * (1 - 1e-6)
        if is_warm and entropy > EVEN * largest:
            return (
                f"the teacher collapses: its outputs are even over all prototypes (entropy {entropy:.2f} of at most "
                f"{largest:.2f}). Usual causes: {CAUSES}"
            )
        if numbers["prototypes_used"] < FEW:
            return (
                "the teacher collapses: it gives nearly all pictures the same prototype. Usual causes: a "
                f"centre_momentum too near 1, {CAUSES}"
            )
        return collapsed(numbers, CAUSES)


def _entropy(shares: Tensor) -> Tensor:
    """In nats, over the last axis."""
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy
