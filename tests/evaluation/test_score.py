import torch
from torch import nn

from vitreous.batch import Batch
from vitreous.evaluation.score import score
from vitreous.models.base import Encoder, Features
from vitreous.tasks.classify import ClassifySettings


class Pixel(Encoder):
    width = 2

    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.ones(()))

    def forward(self, images):
        assert not torch.is_grad_enabled()
        return Features(maps=(), prefix=None, pooled=images * self.seen)


def test_every_batch_counts_by_its_size():
    task = ClassifySettings().build(Pixel(), ("a", "b"))
    with torch.no_grad():
        task.head.weight.copy_(torch.eye(2))
    images = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    labels = torch.tensor([0, 0, 1, 1])
    parts = [slice(0, 3), slice(3, 4)]
    batches = [
        Batch(views=(images[part],), targets={"label": labels[part]}, ids=labels[part], keys=labels[part])
        for part in parts
    ]
    found = score(task, batches)
    assert found["accuracy"] == 3 / 4
    assert "top5" not in found  # of two classes it would always be right
    assert found["pictures"] == 4
