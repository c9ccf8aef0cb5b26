"""Classification: one label per picture (softmax), or several (sigmoid)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Features
from vitreous.objectives.contrast import products
from vitreous.tasks.base import Metric, Task
from vitreous.tasks.class_metrics import ClassificationMetric, ManyLabelsMetric
from vitreous.tasks.predictions import ClassLogits

HeadKind = Literal["linear", "tanh", "distilled", "class-and-mean", "cosine"]
Fusion = Literal["logits", "softmax"]


@dataclass(frozen=True, kw_only=True)
class ClassifySettings:
    head: HeadKind = "linear"  # tanh: a hidden layer (paper 3.1); distilled: DeiT's two; cosine: CLIP's, from words
    loss: Literal["softmax", "sigmoid"] = "softmax"  # sigmoid: several labels per picture, as on ImageNet-21k and JFT
    label_smoothing: float = 0.0  # share of the target spread evenly over all classes (softmax only)
    class_weights: tuple[float, ...] = ()  # factor on the loss of each class (softmax only); none: all equal
    start_bias: float = -10.0  # initial bias of the head (sigmoid only), by which labels start out unlikely
    cosine_width: int | None = None  # cosine: width of the space that features are projected to; none: their own
    fusion: Fusion = "logits"  # distilled: what to average of the two heads; softmax: DeiT's paper; logits: its code

    @property
    def task_kind(self) -> Literal["classify", "label"]:
        """The key in other packages' tables: one class per picture, or labels that are predicted independently."""
        return "label" if self.loss == "sigmoid" else "classify"

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "Classify":
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing is {self.label_smoothing}: it must be at least 0 and below 1")
        if self.label_smoothing and self.loss == "sigmoid":
            raise UserError("label_smoothing goes with the softmax loss: set it to 0 for sigmoid")
        if self.class_weights and (self.loss == "sigmoid" or len(self.class_weights) != len(classes)):
            raise UserError(
                f"{len(self.class_weights)} class_weights for {len(classes)} classes and the {self.loss} loss: give "
                "one per class and the softmax loss, or none at all"
            )
        head = self._head(encoder, len(classes))
        if self.loss == "sigmoid":
            # Start with rare labels, or the first steps would only learn that.
            for bias in head.last_biases():
                nn.init.constant_(bias, self.start_bias)
        return Classify(encoder, head, self.loss, self.label_smoothing, self.class_weights)

    def _head(self, encoder: Encoder, num_classes: int) -> "Head":
        if self.head == "linear":
            return LinearHead(encoder.width, num_classes)
        if self.head == "tanh":
            return TanhHead(encoder.width, num_classes)
        if self.head == "cosine":
            return CosineHead(encoder.width, num_classes, self.cosine_width)
        if self.head == "class-and-mean":
            if encoder.num_prefix < 1:
                raise UserError("the class-and-mean head needs a class token: set num_prefix to 1")
            return ClassAndMeanHead(encoder.outputs[-1].width, num_classes)
        if encoder.num_prefix < 2:
            raise UserError(
                "the distilled head needs a ViT with a class and a distillation token (num_prefix 2): choose one, or "
                "the linear head"
            )
        if self.fusion == "softmax" and self.loss == "sigmoid":
            raise UserError("the fusion of two softmaxes goes with the softmax loss: set fusion to logits for sigmoid")
        return DistilledHead(encoder.outputs[-1].width, num_classes, self.fusion)


def zero_linear(width: int, num_classes: int) -> nn.Linear:
    """Zeros at the start, so that fine-tuning begins with equal probabilities (paper 3.2)."""
    linear = nn.Linear(width, num_classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class LinearHead(nn.Module):
    """One linear layer on the pooled features."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        linear = zero_linear(width, num_classes)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, features: Features) -> Tensor:
        return F.linear(features.pooled, self.weight, self.bias)

    def last_biases(self) -> list[nn.Parameter]:
        return [self.bias]


class TanhHead(nn.Module):
    """One hidden layer of the encoder's width, for pre-training (paper 3.1)."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.output = zero_linear(width, num_classes)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)

    def forward(self, features: Features) -> Tensor:
        logits: Tensor = self.output(torch.tanh(self.hidden(features.pooled)))
        return logits

    def last_biases(self) -> list[nn.Parameter]:
        return [self.output.bias]


class DistilledHead(nn.Module):
    """A linear layer on the class token and one on the distillation token, their logits averaged.

    The paper adds their softmaxes (DeiT, section 4, joint classifiers); the logits are then the logarithm of their
    mean. Its released code averages logits, and so do timm and transformers.
    """

    def __init__(self, width: int, num_classes: int, fusion: Fusion = "logits") -> None:
        super().__init__()
        self.fusion = fusion
        self.classes = zero_linear(width, num_classes)
        self.distillation = zero_linear(width, num_classes)

    def forward(self, features: Features) -> Tensor:
        first, second = self.both(features)
        if self.fusion == "logits":
            return (first + second) / 2
        first, second = (F.log_softmax(logits.float(), dim=1) for logits in (first, second))
        return torch.logaddexp(first, second) - math.log(2)

    def both(self, features: Features) -> tuple[Tensor, Tensor]:
        """(B, K) logits of the class token, and of the distillation token."""
        assert features.prefix is not None
        return self.classes(features.prefix[:, 0]), self.distillation(features.prefix[:, 1])

    def last_biases(self) -> list[nn.Parameter]:
        return [self.classes.bias, self.distillation.bias]


class ClassAndMeanHead(nn.Module):
    """One linear layer on the class token and the mean of the patches, side by side (Oquab et al. 2023, DINOv2)."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        linear = zero_linear(2 * width, num_classes)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, features: Features) -> Tensor:
        assert features.prefix is not None
        both = torch.cat([features.prefix[:, 0], features.maps[-1].mean(dim=(2, 3))], dim=1)  # (B, 2 D)
        return F.linear(both, self.weight, self.bias)

    def last_biases(self) -> list[nn.Parameter]:
        return [self.bias]


class CosineHead(nn.Module):
    """The cosines of the features with one direction per class, times a scale. CLIP compares pictures in this way with
    texts, which can be the names of classes."""

    def __init__(self, width: int, num_classes: int, out: int | None = None) -> None:
        super().__init__()
        self.projection = nn.Identity() if out is None else nn.Linear(width, out, bias=False)
        # At random, unlike the other heads: zeros have no direction, and their gradient would be immense.
        self.weight = nn.Parameter(torch.randn(num_classes, out or width) * (out or width) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.log_scale = nn.Parameter(torch.full((), math.log(1 / 0.07)))

    def forward(self, features: Features) -> Tensor:
        x = self.projection(features.pooled)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # the scale magnifies small differences
        return self.log_scale.exp() * products(F.normalize(x, dim=1), F.normalize(self.weight, dim=1)) + self.bias

    def last_biases(self) -> list[nn.Parameter]:
        return [self.bias]


Head = LinearHead | TanhHead | DistilledHead | ClassAndMeanHead | CosineHead


class Classify(Task):
    class_weights: Tensor | None

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        loss: Literal["softmax", "sigmoid"],
        label_smoothing: float,
        class_weights: tuple[float, ...] = (),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.loss = loss
        self.label_smoothing = label_smoothing
        # Part of training, not of the model: not saved, and a real tensor even if the weights are meta.
        factors = torch.tensor(class_weights, device="cpu") if class_weights else None
        self.register_buffer("class_weights", factors, persistent=False)

    def predict(self, images: Tensor, extent: Tensor | None = None) -> ClassLogits:
        return self.of(self.encoder(images))

    def of(self, features: Features) -> ClassLogits:
        """The prediction from an encoder's features."""
        return ClassLogits(self.head(features), many=self.loss == "sigmoid")

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        # float32 from here on: a softmax over many classes loses too much precision in bfloat16
        logits = self.predict(batch.images).logits.float()
        if self.loss == "sigmoid":
            return {"loss": sigmoid_loss(logits, batch.targets).mean()}
        return {"loss": softmax_loss(logits, batch.targets, self.label_smoothing, self.class_weights).mean()}

    def metric(self) -> Metric:
        return ManyLabelsMetric(sigmoid_loss) if self.loss == "sigmoid" else ClassificationMetric(softmax_loss)


def softmax_loss(
    logits: Tensor, targets: dict[str, Tensor], smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """(B,) cross-entropies, weighted by class; for a mixed picture, the mean of both by their shares. If there are
    probabilities, these are the targets (mixed already), and the label is the most likely class."""
    if "labels" in targets:
        raise UserError("the pictures have several labels each: set --objective.loss sigmoid")
    if "label" not in targets:
        known = " and ".join(targets) or "nothing"
        raise UserError(f"this learns from labels, but these pictures come with: {known}")

    def losses(labels: Tensor) -> Tensor:
        plain = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return plain if class_weights is None else plain * class_weights[labels]

    if "probabilities" in targets:
        wanted = targets["probabilities"].to(logits.dtype)
        return F.cross_entropy(logits, wanted, class_weights, reduction="none", label_smoothing=smoothing)
    if "partner" not in targets:
        return losses(targets["label"])
    return torch.lerp(losses(targets["partner"]), losses(targets["label"]), targets["weight"])


def sigmoid_loss(logits: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """(B,) sums over the classes of the binary cross-entropies."""
    wanted = targets["labels"] if "labels" in targets else mixed_one_hot(targets, logits.shape[1])
    return F.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), reduction="none").sum(dim=1)


def mixed_one_hot(targets: dict[str, Tensor], num_classes: int) -> Tensor:
    """(B, K) float: the labels as vectors, mixed if pictures were mixed."""
    wanted = F.one_hot(targets["label"], num_classes).float()
    if "partner" not in targets:
        return wanted
    return torch.lerp(F.one_hot(targets["partner"], num_classes).float(), wanted, targets["weight"][:, None])
