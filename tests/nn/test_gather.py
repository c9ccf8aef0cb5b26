"""Across ranks, with gradients: two real processes, against gradients worked out by hand."""

import os
import socket
import subprocess
import sys

import torch
from safetensors.torch import load_file

from vitreous.nn.gather import gather, mean_over_ranks, world

# Rank r has x = (1 + r, 10 + r), and its loss weighs what comes back by (r + 1) times 1, 2, 3, ...
RANK = """
import sys
import torch
from safetensors.torch import save_file
from vitreous.nn.gather import gather, mean_over_ranks, world
from vitreous.training.devices import World

rank = World.join("cpu").rank
assert world() == (rank, 2)
found = {}
for function in (gather, mean_over_ranks):
    x = torch.tensor([1.0 + rank, 10.0 + rank], requires_grad=True)
    answer = function(x)
    weights = (rank + 1) * torch.arange(1.0, len(answer) + 1)
    (answer * weights).sum().backward()
    found |= {f"{function.__name__}.answer": answer.detach(), f"{function.__name__}.gradient": x.grad}
# Of two rows: those of a rank stay together, and what one is handed need not lie in one piece.
found["rows"] = gather(torch.arange(6.0).view(3, 2).T + 100 * rank)
save_file(found, sys.argv[1] + f"/{rank}.safetensors")
"""


def test_alone_nothing_changes():
    x = torch.arange(6.0).view(3, 2)
    assert world() == (0, 1)
    assert gather(x) is x
    assert mean_over_ranks(x) is x


def test_two_ranks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            env=shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=100)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], said

    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    for found in (first, second):
        assert found["gather.answer"].tolist() == [1, 10, 2, 11]
        assert found["mean_over_ranks.answer"].tolist() == [1.5, 10.5]
        assert found["rows"].tolist() == [[0, 2, 4], [1, 3, 5], [100, 102, 104], [101, 103, 105]]
    # The losses of both ranks weigh the four numbers by 1, 2, 3, 4 and by twice that: 3, 6, 9, 12 in all.
    assert first["gather.gradient"].tolist() == [3, 6]
    assert second["gather.gradient"].tolist() == [9, 12]
    # Each number has half a share in a mean that is weighed by 1 and 2, and by twice that.
    assert first["mean_over_ranks.gradient"].tolist() == second["mean_over_ranks.gradient"].tolist() == [1.5, 3]
