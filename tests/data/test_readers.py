import resource

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from vitreous import platforms
from vitreous.data.readers import running, workers

MB = 2**20


class Decoded(Dataset):
    """Of each step: in how many pages of memory, new to the process, its pictures lay."""

    def __getitem__(self, step):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pictures = [np.empty(MB, np.uint8) for _ in range(64)]
        for picture in pictures:
            picture.fill(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(platforms.ctypes.CDLL(None), "mallopt"), reason="needs glibc's allocator")
def test_readers_read_into_memory_that_they_have_used_before():
    first, *later = running(workers(Decoded(), range(4), 1, torch.device("cpu")))
    assert first > 1000 and max(later) < first / 10
