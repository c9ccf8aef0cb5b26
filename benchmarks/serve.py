"""The service under load: capacity, twice the capacity, a killed model, and the end, all in one run.

    python benchmarks/serve.py --seconds 60 --out docs/results/serving.json        (make stress-serve)

A ViT-S/16 with random weights is served to clients in a process of their own, which share the machine's cores with the
server: what they take (reported as `client_cpu`) the service does not have. They are plain sockets that send requests
made beforehand, so it is little. Every rate is compared with others of the same run.

bare        the model alone, in a process of its own, on pictures that are ready: the best of batches of 1 to 16
capacity    answers per second of the service while as many clients as it has places wait for their answers in turn
overload    requests at twice the capacity, evenly spaced, whether or not earlier ones are answered
service time is 1 / capacity: the time of one picture when all cores are busy with pictures.
"""

import argparse
import asyncio
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUEUE, MAX_BATCH = 32, 16
NUM_PICTURES = 32


# ---- what is served


def save_model(folder: Path) -> None:
    import torch

    from vitreous.data.transforms import Preprocessing
    from vitreous.models import ViTSettings
    from vitreous.tasks.classify import ClassifySettings
    from vitreous.trained import Trained
    from vitreous.weights.card import Card

    torch.manual_seed(0)
    model, classes = ViTSettings(width=384, heads=6), tuple(f"class {number}" for number in range(1000))
    task = ClassifySettings().build(model.build(), classes)
    torch.nn.init.normal_(task.head.weight, std=0.1)
    card = Card(model=model, task=ClassifySettings(), classes=classes, preprocessing=Preprocessing())
    Trained(card, task.state_dict(), "here").save(folder)


def pictures() -> list[bytes]:
    """JPEGs of an ordinary size, each unlike the others."""
    import numpy as np
    from PIL import Image

    found = []
    for seed in range(NUM_PICTURES):
        coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(stream, "jpeg", quality=90)
        found.append(stream.getvalue())
    return found


BARE = """
import json, sys, time, torch
from vitreous.trained import Trained
task = Trained.load(sys.argv[1]).task()
rates = {}
with torch.inference_mode():
    for size in (1, 2, 4, 8, 16):
        images = torch.randn(size, 3, 224, 224)
        task.predict(images)
        began, num = time.perf_counter(), 0
        while time.perf_counter() - began < float(sys.argv[2]):
            task.predict(images)
            num += size
        rates[size] = num / (time.perf_counter() - began)
print(json.dumps(rates))
"""


def bare_rates(model: Path, seconds: float) -> dict[int, float]:
    ended = subprocess.run([sys.executable, "-c", BARE, str(model), str(seconds)], check=True, stdout=subprocess.PIPE)
    return {int(size): rate for size, rate in json.loads(ended.stdout).items()}


class Running:
    def __init__(self, model: Path, queue: int, max_batch: int) -> None:
        self.queue = queue
        words = ["--port", "0", "--no-open", "--neighbours", "0", "--queue", str(queue), "--max-batch", str(max_batch)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vitreous", "serve", str(model), *words], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found
        self.port = int(found[1])

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *(int(child) for child in children)]

    def memory_mb(self) -> float:
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.processes()]
        return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in texts) / 1024


# ---- clients


class Clients:
    """Runs in a process of its own: `python benchmarks/serve.py --client JSON`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests = [self._request(f"{number}.jpg", data) for number, data in enumerate(pictures())]
        self.found: list[tuple[int, float, float]] = []  # status (0: no answer), begin, end

    def _request(self, name: str, data: bytes) -> bytes:
        head = f'--b\r\ncontent-disposition: form-data; name="pictures"; filename="{name}"\r\n\r\n'
        body = head.encode() + data + b"\r\n--b--\r\n"
        top = f"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-length: {len(body)}\r\n"
        return f"{top}content-type: multipart/form-data; boundary=b\r\n\r\n".encode() + body

    async def ask(self, number: int, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> int:
        reader, writer = stream
        began = time.monotonic()
        status = 0
        try:
            writer.write(self.requests[number % len(self.requests)])
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            await reader.readexactly(length)
            status = int(head.split(None, 2)[1])
            if b"connection: close" in head.lower():
                writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        self.found.append((status, began, time.monotonic()))
        return status

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def closed(self, num: int, seconds: float) -> None:
        """`num` clients, each asking again when it has its answer."""
        end = time.monotonic() + seconds

        async def one(place: int) -> None:
            stream, number = await self.connect(), place
            while time.monotonic() < end and not stream[1].is_closing():
                if await self.ask(number, stream) != 200:
                    break
                number += num
            stream[1].close()

        await asyncio.gather(*(one(place) for place in range(num)))

    async def open(self, rate: float, seconds: float) -> None:
        """Requests at a rate, whatever becomes of earlier ones, on connections that are kept while they last."""
        idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def one(number: int) -> None:
            stream = None
            while idle and stream is None:
                kept = idle.pop()
                stream = None if kept[0].at_eof() else kept  # the server ends what lay idle for long
            try:
                stream = stream or await self.connect()
            except OSError:  # nobody listens
                return
            # An early refusal ends its connection, because the body stays unread.
            status = await self.ask(number, stream)
            if status == 200 and not stream[1].is_closing():
                idle.append(stream)
            else:
                stream[1].close()

        began, asked = time.monotonic(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            asked.append(asyncio.ensure_future(one(number)))
        await asyncio.gather(*asked)


def client_main(words: dict[str, Any]) -> None:
    clients = Clients(words["port"])
    cpu, began = time.process_time(), time.monotonic()
    if words["kind"] == "closed":
        asyncio.run(clients.closed(words["num"], words["seconds"]))
    else:
        asyncio.run(clients.open(words["rate"], words["seconds"]))
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    print(json.dumps({"found": clients.found, "began": began, "client_cpu": share}))


class Load:
    """Clients at work, and afterwards what they found."""

    def __init__(self, port: int, **words: Any) -> None:
        command = [sys.executable, __file__, "--client", json.dumps({"port": port, **words})]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def result(self) -> dict[str, Any]:
        text, _ = self.process.communicate()
        return json.loads(text)


def rate_of(found: list[list[float]], skip_s: float = 0.0) -> float:
    """Answers per second, from the first moment that counts to the last answer."""
    answers = sorted(end for status, _, end in found if status == 200)
    first = answers[0] + skip_s
    counted = [end for end in answers if end >= first]
    return (len(counted) - 1) / (counted[-1] - counted[0])


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- the run


def measure_capacity(running: Running, seconds: float) -> float:
    found = Load(running.port, kind="closed", num=running.queue, seconds=seconds).result()["found"]
    assert all(status == 200 for status, _, _ in found)
    return rate_of(found, skip_s=1.0)


def measure_batches(model: Path, bare: dict[int, float], seconds: float) -> dict[str, Any]:
    """A service with batches of that size, kept busy by twice as many clients: as a share of the bare model's rate."""
    shares = {}
    for size, rate in bare.items():
        running = Running(model, 2 * size, size)
        try:
            wait_until_ready(running)
            found = Load(running.port, kind="closed", num=2 * size, seconds=seconds).result()["found"]
        finally:
            running.process.kill()
        shares[str(size)] = {"per_s": round(rate_of(found, 0.5), 2), "of_bare": round(rate_of(found, 0.5) / rate, 3)}
    return shares


def measure_overload(running: Running, capacity: float, seconds: float) -> dict[str, Any]:
    load = Load(running.port, kind="open", rate=2 * capacity, seconds=seconds)
    memory: list[float] = []
    while load.process.poll() is None and len(memory) < seconds:
        time.sleep(1)
        memory.append(running.memory_mb())
    result = load.result()
    found = result["found"]
    accepted = [end - begin for status, begin, end in found if status == 200]
    refused = [end - begin for status, begin, end in found if status == 429]
    others = sorted({int(status) for status, _, _ in found} - {200, 429})
    limit = (running.queue + 2) / capacity
    settled = memory[len(memory) // 3 :]
    return {
        "requests": len(found),
        "accepted": len(accepted),
        "refused": len(refused),
        "other_statuses": others,
        "p50_accepted_s": round(quantile(accepted, 0.5), 4),
        "p99_accepted_s": round(quantile(accepted, 0.99), 4),
        "limit_accepted_s": round(limit, 4),
        "p50_refused_ms": round(1000 * quantile(refused, 0.5), 2),
        "p99_refused_ms": round(1000 * quantile(refused, 0.99), 2),
        "max_refused_ms": round(1000 * quantile(refused, 1), 2),
        "goodput_of_capacity": round(rate_of(found, 1.0) / capacity, 3),
        "memory_mb": [round(settled[0]), round(settled[-1]), round(max(memory))],
        "client_cpu": round(result["client_cpu"], 3),
    }


def measure_kill(running: Running, capacity: float) -> dict[str, Any]:
    """The model's process killed under load: what others get meanwhile, and when answers come again."""
    load = Load(running.port, kind="open", rate=capacity, seconds=20)
    time.sleep(4)
    killed = time.monotonic()
    os.kill(running.processes()[1], signal.SIGKILL)
    found = load.result()["found"]
    back = min((end for status, begin, end in found if status == 200 and begin > killed), default=killed + 60)
    codes = {int(status) for status, begin, end in found if killed < end < back}
    return {"back_s": round(back - killed, 2), "statuses_meanwhile": sorted(codes - {200})}


def measure_end(running: Running) -> dict[str, Any]:
    load = Load(running.port, kind="closed", num=running.queue, seconds=10)
    time.sleep(5)
    processes = running.processes()
    running.process.terminate()
    code = running.process.wait(60)
    found = load.result()["found"]
    return {
        "exit_code": code,
        "answered": sum(status == 200 for status, _, _ in found),
        "lost": sum(status == 0 for status, _, _ in found),
        "processes_left": sum(Path(f"/proc/{pid}").exists() for pid in processes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--queue", type=int, default=QUEUE)
    parser.add_argument("--max-batch", type=int, default=MAX_BATCH)
    parser.add_argument("--brief", action="store_true", help="the other parts in a third of their time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.client:
        client_main(json.loads(words.client))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended too
    pace = 1 / 3 if words.brief else 1.0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "vit_s16"
        save_model(model)
        bare = bare_rates(model, 6 * pace)
        batches = measure_batches(model, bare, 9 * pace)
        again = bare_rates(model, 6 * pace)  # a machine's speed drifts
        running = Running(model, words.queue, words.max_batch)
        try:
            wait_until_ready(running)
            capacity = measure_capacity(running, 18 * pace)
            overload = measure_overload(running, capacity, words.seconds)
            kill = measure_kill(running, capacity)
            wait_until_ready(running)
            end = measure_end(running)
        finally:
            if running.process.poll() is None:
                running.process.kill()
    best = max(*bare.values(), *again.values())
    result = {
        "model": "vit_s16, 224 px, random weights, float32",
        "cores": len(os.sched_getaffinity(0)),
        "queue": words.queue,
        "max_batch": words.max_batch,
        "bare_per_s": {str(size): round(statistics.mean((rate, again[size])), 2) for size, rate in bare.items()},
        "service_at_batch": batches,
        "capacity_per_s": round(capacity, 2),
        "capacity_of_best_bare": round(capacity / best, 3),
        "service_time_s": round(1 / capacity, 4),
        "overload": overload,
        "killed": kill,
        "sigterm": end,
        "holds": {
            "p99 of accepted <= (queue + 2) x service time": overload["p99_accepted_s"] <= overload["limit_accepted_s"],
            "refusals within 50 ms (p99)": overload["p99_refused_ms"] <= 50,
            "goodput >= 0.95 of capacity": overload["goodput_of_capacity"] >= 0.95,
            "memory flat (5 %)": overload["memory_mb"][1] <= 1.05 * overload["memory_mb"][0],
            "killed model back within 5 s": kill["back_s"] <= 5 and set(kill["statuses_meanwhile"]) <= {429, 503},
            "SIGTERM loses nothing, leaves nothing": end["lost"] == 0 and end["processes_left"] == 0,
            "throughput at batch 1-16 >= 0.9 of bare": min(each["of_bare"] for each in batches.values()) >= 0.9,
        },
    }
    print(json.dumps(result, indent=2))
    from vitreous.training.environment import environment  # not before: the clients' process needs no torch

    result = {"environment": environment(), **result}
    if words.out:
        words.out.write_text(json.dumps(result, indent=2) + "\n")


def wait_until_ready(running: Running) -> None:
    import urllib.error
    import urllib.request

    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{running.port}/readyz")
            return
        except urllib.error.HTTPError:
            time.sleep(0.1)
    raise SystemExit("the service never became ready")


if __name__ == "__main__":
    main()
