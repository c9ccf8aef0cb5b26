"""Run by test_level_counts with TRITON_INTERPRET=1: the kernel against torch's own counts, on the CPU."""

import torch

from vitreous.data.level_counts import level_counts
from vitreous.data.level_counts_triton import counted

for height, width in ((1, 1), (64, 64), (37, 131)):
    images = torch.randint(0, 256, (4, 3, height, width), dtype=torch.uint8)
    images[1] = 255
    images[3] = 0
    wanted = torch.tensor([True, True, False, True])
    found, expected = counted(images, wanted), level_counts(images)
    assert torch.equal(found[wanted].long(), expected[wanted])
    assert not found[~wanted].any()
