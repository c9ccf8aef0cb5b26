"""A service to measure, in processes of its own."""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

STARTED: list[subprocess.Popen[str]] = []  # processes, to be ended whatever happens


def start(*command: str, **named: Any) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **named)
    STARTED.append(process)
    return process


class Running:
    """A `vitreous serve` of its own."""

    def __init__(
        self, model: Path, queue: int | None = None, max_batch: int | None = None, files: int | None = None
    ) -> None:
        """`files`: how many it may have open."""
        words = ["--port", "0", "--no-open", "--neighbours", "0"]
        words += [] if queue is None else ["--queue", str(queue)]
        words += [] if max_batch is None else ["--max-batch", str(max_batch)]
        command = [sys.executable, "-m", "vitreous", "serve", str(model), *words]
        limited = [] if files is None else ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files)]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the service
        self.process = start(*limited, *command, stderr=self.log)
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found
        self.port = int(found[1])
        self.wait_until_ready()
        self.queue = int(self.metric("vitreous_queue_places"))
        self.max_batch = int(self.metric("vitreous_max_batch_pictures"))

    def wait_until_ready(self) -> None:
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz")
                return
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise SystemExit("the service never became ready")

    def metric(self, name: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))

    def cpu_s(self) -> list[float]:
        """Of the HTTP process and of the model's, so far."""
        texts = [Path(f"/proc/{pid}/stat").read_text() for pid in self.processes()]
        fields = [text.rpartition(")")[2].split() for text in texts]
        return [(int(each[11]) + int(each[12])) / os.sysconf("SC_CLK_TCK") for each in fields]

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *(int(child) for child in children)]

    def memory_mb(self) -> float:
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.processes()]
        return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in texts) / 1024

    def num_open(self) -> int:
        """Descriptors of the HTTP process."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def log_bytes(self) -> int:
        return os.fstat(self.log.fileno()).st_size
