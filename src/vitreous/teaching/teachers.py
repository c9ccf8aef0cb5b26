"""A trained model that teaches another: it sees the student's views, in its own size and normalisation."""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import settings
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Features
from vitreous.tasks.base import Task
from vitreous.tasks.predictions import class_logits
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained


class KnownTeacher(nn.Module):
    """What a run learns from. Checkpoints keep its fingerprint, and refuse another teacher."""

    fingerprint: Tensor

    def __init__(self, fingerprint: int, subject: str, remedy: str) -> None:
        super().__init__()
        self._subject, self._remedy = subject, remedy
        self.register_buffer("fingerprint", torch.tensor(fingerprint))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}fingerprint")
        if saved is not None and int(saved) != int(self.fingerprint):
            raise UserError(
                f"{self._subject} the teacher that this run began with: its weights differ; {self._remedy}, or start "
                "again with another --out"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Teacher(KnownTeacher):
    """A classifier returns logits (B, K), an encoder its Features. It is frozen, and never in training mode.

    Its weights move to a device with the objective that holds it, but are not part of the objective: not trained,
    averaged or saved, since a run that resumes loads them again.
    """

    scale: Tensor
    shift: Tensor
    order: Tensor | None

    def __init__(
        self,
        model: Task | Encoder,
        own: Preprocessing,
        students: Preprocessing,
        classes: tuple[str, ...] = (),
        where: str = "the teacher",
    ) -> None:
        super().__init__(_fingerprint(model, own), f"{where}: not", "give that one as --teacher")
        self._hidden = (model.requires_grad_(False).eval(),)  # in a tuple, where nn.Module does not find it
        self.own, self.classes, self.where = own, classes, where
        mean, std, own_mean, own_std = (
            torch.tensor(values, dtype=torch.float64)[:, None, None]
            for values in (students.mean, students.std, own.mean, own.std)
        )
        self.register_buffer("scale", (std / own_std).float(), persistent=False)
        self.register_buffer("shift", ((mean - own_mean) / own_std).float(), persistent=False)
        self.register_buffer("order", None, persistent=False)

    @classmethod
    def load(cls, where: str, students: Preprocessing) -> Self:
        """From anything that weights can be loaded from. `students`: the student's preprocessing."""
        trained = Trained.load(where)
        model = trained.task() if trained.card.predicts else trained.encoder()
        return cls(model, trained.card.preprocessing, students, trained.card.classes, where)

    @property
    def model(self) -> Task | Encoder:
        return self._hidden[0]

    def in_order_of(self, classes: tuple[str, ...]) -> Self:
        """From now on its logits are in the order of the student's classes, which must have the same names. A file that
        only numbers its classes is assumed to have them in the student's order, if there are as many."""
        if not isinstance(self.model, Task):
            raise UserError(
                f"{self.where}: an encoder without a head predicts no classes; name a classifier as --teacher"
            )
        if sorted(self.classes) == sorted(classes):
            places = [self.classes.index(name) for name in classes]
            self.order = None if self.classes == classes else torch.tensor(places, device=self.scale.device)
        elif self.classes != tuple(str(number) for number in range(len(classes))):
            raise UserError(f"{self.where} cannot teach these classes: {_difference(self.classes, classes)}")
        return self

    @torch.no_grad()
    def forward(self, views: Tensor) -> Tensor | Features:
        seen, model = self.adapted(views), self.model
        if not isinstance(model, Task):
            return model(seen)  # type: ignore[no-any-return]
        logits = class_logits(model.predict(seen))
        return logits if self.order is None else logits[:, self.order]

    def adapted(self, views: Tensor) -> Tensor:
        """The student's views in the teacher's size and normalisation."""
        views = views * self.scale + self.shift
        if views.shape[-2:] != self.own.size_px:
            views = F.interpolate(views, size=self.own.size_px, mode="bilinear", antialias=True)
        return views

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def _fingerprint(model: nn.Module, own: Preprocessing) -> int:
    """Of its weights and its preprocessing: 63 bits of a sha256."""
    return int(fingerprint(model, settings.to_json(own))[:16], 16) >> 1


def _difference(own: tuple[str, ...], students: tuple[str, ...]) -> str:
    lacking, unknown = sorted(set(students) - set(own)), sorted(set(own) - set(students))
    words = [f"it does not know {lacking[0]!r}"] if lacking else []
    words += [f"the data has no {unknown[0]!r}"] if unknown else []
    told = " and ".join(words) or "a name occurs twice"
    return f"{told} ({len(own)} classes there, {len(students)} here)"
