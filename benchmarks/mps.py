"""NVIDIA's MPS: under it, kernels of several processes run on one GPU at the same time; without it they take turns.

It changes no setting of the card, and serves only who is started with the variables that name its folder. A process
that is killed under it, or fails with a fault of the GPU, may harm the others: so every group has a daemon of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
ANSWER_S = 10.0  # for the daemon to begin, to answer or to end: it takes a moment
PROBE = "import torch; x = torch.ones(1024, 1024, device='cuda'); assert float((x @ x).sum()) == 1024**3"

# Whether a command that is run in this environment succeeds.
Try = Callable[[list[str], Mapping[str, str]], bool]


class Mps:
    def __init__(self, tried: Try) -> None:
        self.tried = tried
        self.why_not = "" if shutil.which(CONTROL) else f"there is no {CONTROL}"
        self.is_probed = False

    @contextmanager
    def serving(self) -> Iterator[dict[str, str]]:
        """Inside, who is started with these variables is served; there are none where it does not work."""
        if self.why_not:
            yield {}
            return
        # Its sockets lie there, and the path of a socket is short.
        with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as folder:
            variables = {}
            for name in ("PIPE", "LOG"):
                variables[f"CUDA_MPS_{name}_DIRECTORY"] = path = f"{folder}/{name.lower()}"
                Path(path).mkdir()
            environment = {**os.environ, **variables}
            try:
                self.why_not = self._begin(environment)
                yield {} if self.why_not else variables
            finally:
                _control([], environment, "quit -t 5")

    def _begin(self, environment: Mapping[str, str]) -> str:
        """Why it does not work, if so."""
        if _control(["-d"], environment) is None:
            return f"{CONTROL} -d failed"
        if not self.is_probed:
            self.is_probed = True
            if not self.tried([sys.executable, "-c", PROBE], environment):
                return "a product of two matrices failed under it"
            if not _control([], environment, "get_server_list"):
                return "it served nobody"
        return ""


def _control(options: list[str], environment: Mapping[str, str], told: str = "") -> str | None:
    """What it answers; None if it fails. A file for that: a daemon would keep a pipe open."""
    with tempfile.TemporaryFile("w+") as answer, suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [CONTROL, *options],
            input=told,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=ANSWER_S,
            text=True,
            check=True,
        )
        answer.seek(0)
        return answer.read().strip()
    return None
