"""A trained model that teaches another: it is shown the student's views, in the way it is used to see pictures."""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.transforms import Preprocessing
from vitreous.models.base import Encoder, Features
from vitreous.tasks.base import Task
from vitreous.trained import Trained


class Teacher(nn.Module):
    """A classifier answers logits (B, K), an encoder its Features. It is frozen, and never in training mode."""

    def __init__(self, model: Task | Encoder, own: Preprocessing, students: Preprocessing) -> None:
        super().__init__()
        self.model = model.requires_grad_(False).eval()
        self.own, self.students = own, students

    @classmethod
    def load(cls, where: str, students: Preprocessing) -> Self:
        """From wherever weights can be loaded. `students`: how the student's pictures are made."""
        trained = Trained.load(where)
        model = trained.encoder(trained.card.model) if trained.card.task is None else trained.task()
        return cls(model, trained.card.preprocessing, students)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    @torch.no_grad()
    def forward(self, views: Tensor) -> Tensor | Features:
        seen = self.adapted(views)
        return self.model.predict(seen) if isinstance(self.model, Task) else self.model(seen)

    def adapted(self, views: Tensor) -> Tensor:
        """The student's views in the teacher's size and normalisation."""
        if (self.own.mean, self.own.std) != (self.students.mean, self.students.std):
            mean, std, own_mean, own_std = (
                torch.tensor(values, dtype=views.dtype, device=views.device)[:, None, None]
                for values in (self.students.mean, self.students.std, self.own.mean, self.own.std)
            )
            views = (views * std + mean - own_mean) / own_std
        if views.shape[-2:] != self.own.size_px:
            views = F.interpolate(views, size=self.own.size_px, mode="bilinear", antialias=True)
        return views
