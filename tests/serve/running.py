"""A real server in a process of its own, on a free port; small models and pictures for it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image

from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.models.base import EncoderSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("red", "green", "blue", "<img src=x onerror=alert(1)>")


def png(seed: int, size: tuple[int, int] = (40, 48)) -> bytes:
    """A picture unlike all others."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(stream, "png")
    return stream.getvalue()


class Running:
    """A `vitreous serve` of its own."""

    def __init__(self, *words, token: str | None = None, files: int | None = None) -> None:
        """`files`: how many it may have open."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if token is None else {"VITREOUS_TOKEN": token})
        command = [sys.executable, "-m", "vitreous", "serve", *(str(word) for word in words), "--no-open"]
        if files is not None:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files), *command]
        self.process = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://[^:]+:(\d+)/", line)
        assert found, line + self.process.stderr.read()
        self.port = int(found[1])
        self.address = ("127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self.port}"
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # A server with many clients ends idle connections: none is kept.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers, limits=limits)

    def wait_until_ready(self) -> None:
        for _ in range(1200):
            assert self.process.poll() is None, self.process.stderr.read()
            if self.client.get("/readyz").status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError("never ready")

    def wait_for(self, what) -> None:
        for _ in range(600):
            if what():
                return
            time.sleep(0.02)
        raise AssertionError("never came true")

    def predict(self, *pictures: bytes, **options) -> httpx.Response:
        files = [("pictures", (f"{number}.png", data)) for number, data in enumerate(pictures)]
        return self.client.post("/v1/predict", files=files, params=options)

    def metric(self, name: str) -> float:
        return sum(
            float(line.split()[-1]) for line in self.client.get("/metrics").text.splitlines() if line.startswith(name)
        )

    def workers(self) -> list[int]:
        return children(self.process.pid)

    def signal_workers(self, number: int) -> None:
        for worker in self.workers():
            os.kill(worker, number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.signal_workers(signal.SIGCONT)
            self.process.send_signal(number)
        code = self.process.wait(60)
        self.errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == parent and after_name[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def save_model(folder: Path, seed: int = 0, model: EncoderSettings | None = None, **changes) -> Path:
    torch.manual_seed(seed)
    if model is None:
        model = ViTSettings.of(**{"picture_px": (32, 40), "patch": 8, "width": 32, "depth": 2, "heads": 2} | changes)
    task = ClassifySettings().build(model.build(), CLASSES)
    torch.nn.init.normal_(task.head.weight)
    if isinstance(model, ViTSettings):
        torch.nn.init.normal_(task.encoder.positions.tables[0].table)
    else:
        for parameter in task.encoder.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    card = Card(
        model=model,
        task=ClassifySettings(),
        classes=CLASSES,
        preprocessing=Preprocessing(size_px=model.picture_px),
        calibration=ClassCalibration(temperature=1.7, sets=((0.9, 0.2), (0.99, 0.01))),
    )
    Trained(card, task.state_dict(), "here").save(folder)
    return folder


def unpacked(body: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """An answer of /v1/attention, as docs/SERVING.md describes it."""
    length = int.from_bytes(body[:4], "little")
    header = json.loads(body[4 : 4 + length])
    arrays = {}
    for place in header["arrays"]:
        start, count = 4 + length + place["offset"], int(np.prod(place["shape"]))
        arrays[place["name"]] = np.frombuffer(body, place["dtype"], count, start).reshape(place["shape"])
    return header, arrays
