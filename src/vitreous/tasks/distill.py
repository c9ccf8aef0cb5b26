"""Distillation: a classifier that learns from labels and from a teacher (Touvron et al. 2021, DeiT, section 4)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_positive, check_shares
from vitreous.objectives.taught import TaughtSettings
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify, ClassifySettings, DistilledHead, softmax_loss

Distillation = Literal["hard", "soft"]
SHARES: dict[Distillation, float] = {"hard": 0.5, "soft": 0.1}  # of the teacher's loss (equations 3 and 2; section 4)


@dataclass(frozen=True, kw_only=True)
class DistillSettings(TaughtSettings):
    """With the distilled head, the class token learns from the labels, and the distillation token from the teacher; any
    other head learns from both (the paper's "usual distillation")."""

    same_classes: ClassVar[bool] = True

    distillation: Distillation = "hard"  # what to learn from the teacher: its decisions, or all its logits
    weight: float | None = None  # share of the teacher's loss; none: the paper's, 0.5 for hard and 0.1 for soft
    temperature: float = 3.0  # soft: the logits of both are divided by it
    stored: str | None = None  # folder of predictions from `vitreous teach`; the teacher is then not run
    student: ClassifySettings = field(
        default_factory=lambda: ClassifySettings(head="distilled", label_smoothing=0.1, fusion="softmax")
    )

    @property
    def keeps(self) -> Distillation:
        return self.distillation

    def kept(self, predictions: Tensor) -> Tensor:
        """From logits (B, K): the decisions (B,) as int64, or all logits in half precision. A live teacher's are
        rounded too, so that it teaches the same as its stored predictions."""
        return predictions.argmax(dim=1) if self.distillation == "hard" else predictions.to(torch.float16)

    def build(self, encoder: Encoder, classes: tuple[str, ...], teacher: nn.Module) -> "Distill":
        """`teacher`: the student's views in, logits of `classes` out; not run if batches hold its predictions."""
        if self.weight is not None:
            check_shares(self, "weight")
        check_positive(self, "temperature")
        if self.student.loss == "sigmoid":
            raise UserError("a teacher's decisions are one class per picture: set --objective.student.loss softmax")
        return Distill(self.student.build(encoder, classes), teacher, self)


class Distill(Objective):
    def __init__(self, student: Classify, teacher: nn.Module, settings: DistillSettings) -> None:
        super().__init__()
        self.student, self.teacher, self.settings = student, teacher, settings
        self.share = SHARES[settings.distillation] if settings.weight is None else settings.weight

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]
        return self.student.encoder

    @property
    def task(self) -> Task:
        return self.student

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        if "label" not in batch.targets:
            raise UserError("distillation needs pictures with one label each, and these have several")
        student = self.student
        features = student.encoder(batch.images)
        if isinstance(student.head, DistilledHead):
            for_label, for_teacher = (logits.float() for logits in student.head.both(features))
        else:
            for_label = for_teacher = student.head(features).float()
        taught = batch.targets.get("teacher")
        if taught is None:
            taught = self.settings.kept(self.teacher(batch.images))
        by_label = softmax_loss(for_label, batch.targets, student.label_smoothing, student.class_weights).mean()
        by_teacher = teacher_loss(for_teacher, taught, self.settings.temperature).mean()
        decisions = taught if taught.ndim == 1 else taught.argmax(dim=1)
        return {
            "loss": (1 - self.share) * by_label + self.share * by_teacher,
            "label_loss": by_label.detach(),
            "teacher_loss": by_teacher.detach(),
            "agreement": (for_teacher.argmax(dim=1) == decisions).float().mean(),
        }


def teacher_loss(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """(B,): cross-entropy with the teacher's decision, or tau^2 KL(teacher, student), both at temperature tau.

    The released code also divides the divergence by the number of classes; here it is as in equation 2.
    """
    if taught.ndim == 1:
        return F.cross_entropy(logits, taught, reduction="none")
    ours, theirs = (F.log_softmax(some.float() / temperature, dim=1) for some in (logits, taught))
    return temperature**2 * F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=1)
