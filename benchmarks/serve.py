"""The service under load: batches, capacity, twice the capacity, a killed model, and the end, all in one run.

    python benchmarks/serve.py --seconds 60 --out docs/results/serving.json        (make stress-serve; 4 to 5 minutes)

A ViT-S/16 with random weights is served to clients in a process of their own, which share the machine's cores with the
server: what they take (reported as `client_cpu`, in cores) the service does not have. They are plain sockets that send
requests made beforehand, so it is little. Every rate is compared with others of the same run, from before and after it.
The end says which limits hold; where one does not, the exit status is 1.

bare        the model alone, in a process of its own with as many threads, on float tensors that are ready: nothing is
            sent, decoded or resized. `one pass` at a time on all cores, as a plain loop over the model does it; and
            `side by side`, two passes on half the cores each, as the service does it. The service is compared with
            the better of the two; it gets JPEGs of 500 x 375 pixels, which it decodes and resizes.
at batch N  answers per second of a service with --max-batch N while 4 N clients wait for their answers in turn
capacity    the same of a service with its own settings and as many clients as it has places
overload    requests at twice the capacity, evenly spaced, whether or not earlier ones are answered; in three stretches,
            since the machine's speed drifts: each is held against the capacity right before and after it
service time is 1 / capacity: the time of one picture when all cores are busy with pictures.
hostile     floods, crumbs, requests with two ends, pictures made to hurt: what is asserted stands in `hostile.py`
"""

import argparse
import asyncio
import io
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
from service import STARTED, Running, start

NUM_PICTURES = 32
SIZES = (1, 2, 4, 8, 16)
MAX_S = 600  # of all but the overload: whatever hangs is ended then


# ---- what is served


def save_model(folder: Path) -> None:
    import torch

    from vitreous.data.transforms import Preprocessing
    from vitreous.models import ViTSettings
    from vitreous.tasks.classify import ClassifySettings
    from vitreous.weights.card import Card
    from vitreous.weights.trained import Trained

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
import json, os, sys, threading, time, torch
from vitreous.weights.trained import Trained
task = Trained.load(sys.argv[1]).task()

def lane(threads, size, until, ends):
    torch.set_num_threads(threads)
    with torch.inference_mode():
        images = torch.randn(size, 3, 224, 224)
        task.predict(images).logits
        ends.append(time.perf_counter())
        while len(ends) < 3 or time.perf_counter() < until:
            task.predict(images).logits
            ends.append(time.perf_counter())

for line in sys.stdin:
    lanes, size, seconds = json.loads(line)
    found = [[] for _ in range(lanes)]
    threads = max(1, (os.cpu_count() or 1) // lanes)
    until, cpu = time.perf_counter() + seconds, time.process_time()
    running = [threading.Thread(target=lane, args=(threads, size, until, ends)) for ends in found]
    for thread in running: thread.start()
    for thread in running: thread.join()
    rate = sum(size * (len(ends) - 1) / (ends[-1] - ends[0]) for ends in found)
    print(json.dumps([rate, (time.process_time() - cpu) / sum(size * len(ends) for ends in found)]), flush=True)
"""


class Bare:
    """The model alone. Its process sleeps while the service is measured."""

    def __init__(self, model: Path) -> None:
        self.process = start(sys.executable, "-c", BARE, str(model), stdin=subprocess.PIPE)

    def rates(self, size: int, seconds: float) -> tuple[float, float, float]:
        """Pictures per second: one pass at a time, and two side by side; and the CPU time of a picture in these."""
        return self._rate(1, size, seconds)[0], *self._rate(2, size, seconds)

    def _rate(self, lanes: int, size: int, seconds: float) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([lanes, size, seconds]), file=self.process.stdin, flush=True)
        rate, cpu_s = json.loads(self.process.stdout.readline())
        return [rate, cpu_s]


# ---- clients


class Clients:
    """Runs in a process of its own: `python benchmarks/serve.py --client JSON`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests = [self._request(f"{number}.jpg", data) for number, data in enumerate(pictures())]
        self.found: list[tuple[int, float, float]] = []  # status (0: no answer), begin, end
        self.stopped: float | None = None  # when they began to ask no more

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

    async def closed(self, num: int, seconds: float, least: int) -> None:
        """`num` clients, each asking again when it has its answer: for so long, and for so many answers at least."""
        end = time.monotonic() + seconds

        async def one(place: int) -> None:
            stream, number = await self.connect(), place
            while (time.monotonic() < end or len(self.found) < least) and not stream[1].is_closing():
                if await self.ask(number, stream) != 200:
                    break
                number += num
            self.stopped = self.stopped or time.monotonic()
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
        asyncio.run(clients.closed(words["num"], words["seconds"], words.get("least", 0)))
    else:
        asyncio.run(clients.open(words["rate"], words["seconds"]))
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    print(json.dumps({"found": clients.found, "began": began, "stopped": clients.stopped, "client_cpu": share}))


class Load:
    """Clients at work, and afterwards what they found."""

    def __init__(self, port: int, **words: Any) -> None:
        self.process = start(sys.executable, __file__, "--client", json.dumps({"port": port, **words}))

    def result(self) -> dict[str, Any]:
        text, _ = self.process.communicate()
        return json.loads(text)


def rate_of(result: dict[str, Any], skip_s: float) -> float:
    """Answers per second, as the slope of their number over time: answers come in batches, and a count between two
    moments would depend on how many of those the ends happen to cut off."""
    first, last = result["began"] + skip_s, result["stopped"]
    ends = sorted(end for status, _, end in result["found"] if status == 200 and first <= end <= last)
    return statistics.linear_regression(ends, range(len(ends))).slope


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- the run

STRETCHES = 3  # of overload, with the capacity measured before and after each


def measure_capacity(running: Running, seconds: float) -> float:
    result = Load(running.port, kind="closed", num=running.queue, seconds=seconds).result()
    assert all(status == 200 for status, _, _ in result["found"])
    return rate_of(result, 1.5)


def measure_alone(running: Running, seconds: float) -> float:
    """The median time to an answer where nobody else asks."""
    result = Load(running.port, kind="closed", num=1, seconds=seconds).result()
    return statistics.median(end - begin for _, begin, end in result["found"])


def measure_batches(model: Path, pace: float) -> dict[str, Any]:
    """A service with batches of that size, kept busy, between two measurements of the model alone."""
    table = {}
    bare = Bare(model)
    for size in SIZES:
        running = Running(model, 4 * size, size)
        before = bare.rates(size, 3 * pace)
        cpu = running.cpu_s()
        words = {"num": 4 * size, "seconds": 2 + (7 + size / 2) * pace, "least": 12 * size}  # a few batches at least
        result = Load(running.port, kind="closed", **words).result()
        cpu = [late - early for late, early in zip(running.cpu_s(), cpu, strict=True)]
        after = bare.rates(size, 3 * pace)
        running.process.kill()
        running.process.wait()
        one_pass, side_by_side, cpu_s = (statistics.mean(pair) for pair in zip(before, after, strict=True))
        service, num = rate_of(result, 2.0), len(result["found"])
        table[str(size)] = {
            "service_per_s": round(service, 2),
            "bare_one_pass_per_s": round(one_pass, 2),
            "bare_side_by_side_per_s": round(side_by_side, 2),
            "of_bare": round(service / max(one_pass, side_by_side), 3),
            "bare_cpu_ms_a_picture": round(1000 * cpu_s, 1),
            "http_cpu_ms_a_picture": round(1000 * cpu[0] / num, 2),
            "model_cpu_ms_a_picture": round(1000 * cpu[1] / num, 1),
        }
        say(f"batch {size}: {table[str(size)]}")
    bare.process.kill()
    return table


@dataclass(frozen=True)
class Stretch:
    """Some seconds of overload."""

    found: list[tuple[int, float, float]]  # status, begin, end
    answered_per_s: float
    memory_mb: list[float]
    client_cpu: float


def measure_overload(running: Running, rate: float, seconds: float) -> Stretch:
    load = Load(running.port, kind="open", rate=rate, seconds=seconds)
    memory: list[float] = []
    while load.process.poll() is None and len(memory) < seconds:
        time.sleep(1)
        memory.append(running.memory_mb())
    result = load.result()
    answered = sum(status == 200 and 1 <= end - result["began"] <= seconds for status, _, end in result["found"])
    return Stretch(result["found"], answered / (seconds - 1), memory, result["client_cpu"])


def told(stretches: list[Stretch], capacities: list[float], queue: int) -> dict[str, Any]:
    """What the stretches were like, all together. The machine's speed drifts, so each is held against the capacities
    that were measured right before and right after it."""
    found = [each for stretch in stretches for each in stretch.found]
    accepted = [end - begin for status, begin, end in found if status == 200]
    refused = [end - begin for status, begin, end in found if status == 429]
    memory = [value for stretch in stretches for value in stretch.memory_mb]
    settled = memory[len(memory) // 3 :]
    around = [statistics.mean(pair) for pair in itertools.pairwise(capacities)]
    shares = [stretch.answered_per_s / capacity for stretch, capacity in zip(stretches, around, strict=True)]
    return {
        "requests": len(found),
        "accepted": len(accepted),
        "refused": len(refused),
        "other_statuses": sorted({int(status) for status, _, _ in found} - {200, 429}),
        "p50_accepted_s": round(quantile(accepted, 0.5), 4),
        "p99_accepted_s": round(quantile(accepted, 0.99), 4),
        "limit_accepted_s": round((queue + 2) / statistics.mean(around), 4),
        "p50_refused_ms": round(1000 * quantile(refused, 0.5), 2),
        "p99_refused_ms": round(1000 * quantile(refused, 0.99), 2),
        "max_refused_ms": round(1000 * quantile(refused, 1), 2),
        "goodput_per_s": [round(stretch.answered_per_s, 2) for stretch in stretches],
        "goodput_of_capacity": round(statistics.mean(shares), 3),
        "goodput_of_capacity_by_stretch": [round(share, 3) for share in shares],
        "memory_mb": [round(settled[0]), round(settled[-1]), round(max(memory))],
        "client_cpu": round(statistics.mean(stretch.client_cpu for stretch in stretches), 3),
    }


def measure_kill(running: Running, capacity: float) -> dict[str, Any]:
    """The model's process killed under load: what others get meanwhile, and when answers come again."""
    load = Load(running.port, kind="open", rate=capacity, seconds=12)
    time.sleep(3)
    killed = time.monotonic()
    os.kill(running.processes()[1], signal.SIGKILL)
    found = load.result()["found"]
    back = min((end for status, begin, end in found if status == 200 and begin > killed), default=killed + 60)
    codes = {int(status) for status, begin, end in found if killed < end < back}
    return {"back_s": round(back - killed, 2), "statuses_meanwhile": sorted(codes - {200})}


def measure_end(running: Running) -> dict[str, Any]:
    load = Load(running.port, kind="closed", num=running.queue, seconds=8)
    time.sleep(4)
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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(words: argparse.Namespace, model: Path) -> dict[str, Any]:
    pace = 1 / 3 if words.brief else 1.0
    batches = measure_batches(model, pace)
    running = Running(model, words.queue, words.max_batch)
    alone = measure_alone(running, 3)
    capacities = [measure_capacity(running, 2 + 12 * pace)]
    rate = 2 * capacities[0]
    say(f"capacity {capacities[0]:.2f} a second; now twice that for {words.seconds:g} s in {STRETCHES} stretches")
    stretches = []
    for _ in range(STRETCHES):
        stretches.append(measure_overload(running, rate, words.seconds / STRETCHES))
        capacities.append(measure_capacity(running, 2 + 12 * pace))
    overload = told(stretches, capacities, running.queue)
    kill = measure_kill(running, capacities[0])
    running.wait_until_ready()
    end = measure_end(running)
    attacked = hostile.measure(model)
    capacity = statistics.mean(capacities)
    return {
        "model": "vit_s16, 224 px, random weights, float32",
        "cores": len(os.sched_getaffinity(0)),
        "queue": running.queue,
        "max_batch": running.max_batch,
        "at_batch": batches,
        "alone_s": round(alone, 4),
        "capacity_per_s": round(capacity, 2),
        "capacities_per_s": [round(each, 2) for each in capacities],
        "service_time_s": round(1 / capacity, 4),
        "overload": overload,
        "killed": kill,
        "sigterm": end,
        "hostile": attacked,
        "holds": {**holds(batches, overload, kill, end), **hostile.holds(attacked)},
    }


def measure_hostile(model: Path) -> dict[str, Any]:
    attacked = hostile.measure(model)
    return {"hostile": attacked, "holds": hostile.holds(attacked)}


def holds(
    batches: dict[str, Any], overload: dict[str, Any], kill: dict[str, Any], end: dict[str, Any]
) -> dict[str, bool]:
    return {
        "throughput at batch 1-16 >= 0.9 of bare": min(each["of_bare"] for each in batches.values()) >= 0.9,
        "p99 of accepted <= (queue + 2) x service time": overload["p99_accepted_s"] <= overload["limit_accepted_s"],
        "refusals within 50 ms (p99)": overload["refused"] > 0 and overload["p99_refused_ms"] <= 50,
        "nothing but 200 and 429": not overload["other_statuses"],
        "goodput >= 0.95 of capacity": overload["goodput_of_capacity"] >= 0.95,
        "memory flat (5 %)": overload["memory_mb"][1] <= 1.05 * overload["memory_mb"][0],
        "killed model back within 5 s": kill["back_s"] <= 5 and set(kill["statuses_meanwhile"]) <= {429, 503},
        "SIGTERM loses nothing, leaves nothing": end["lost"] == 0 and end["processes_left"] == 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload")
    parser.add_argument("--queue", type=int, help="places of the service (default: its own)")
    parser.add_argument("--max-batch", type=int, help="of the service (default: its own)")
    parser.add_argument("--brief", action="store_true", help="the other parts in a third of their time")
    parser.add_argument("--hostile", action="store_true", help="the hostile clients alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.client:
        client_main(json.loads(words.client))
        return 0
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit("ended before its time"))  # so that what was started is ended too
    signal.alarm(MAX_S + int(words.seconds))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "vit_s16"
        save_model(model)
        try:
            result = measure_hostile(model) if words.hostile else measure(words, model)
        finally:
            for process in STARTED:
                process.kill()
    print(json.dumps(result, indent=2))
    from vitreous.training.environment import environment  # not before: the clients' process needs no torch

    if words.out:
        words.out.write_text(json.dumps({"environment": environment(), **result}, indent=2) + "\n")
    for name, does_hold in result["holds"].items():
        say(f"{'holds' if does_hold else 'DOES NOT HOLD'}: {name}")
    return 0 if all(result["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
