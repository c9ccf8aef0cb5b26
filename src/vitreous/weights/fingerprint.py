"""Whether two models are the same: a digest of all weights, and of whatever else their outputs follow from."""

import hashlib
import json
from typing import Any

import torch
from torch import nn


def fingerprint(module: nn.Module, about: Any) -> str:
    """sha256 of its weights as they are used, and of plain JSON: how it sees pictures, what was fitted afterwards."""
    digest = hashlib.sha256(json.dumps(about).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
