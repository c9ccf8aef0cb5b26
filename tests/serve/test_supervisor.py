"""Overload, clients that leave, a model's process that dies, and the end. A stopped process stands for a slow one."""

import asyncio
import errno
import io
import os
import signal
import socket
import threading
import time

import httpx
import pytest
from PIL import Image
from running import Running, children, is_alive, png

from vitreous.serve import frames, supervisor
from vitreous.serve.api import build_app
from vitreous.serve.body import Refused
from vitreous.serve.service import Service
from vitreous.serve.settings import ServeSettings
from vitreous.serve.supervisor import ModelProcess
from vitreous.serve.worker import NUM_DECODERS

QUEUE = 6


@pytest.fixture(scope="module")
def slow(model):
    """One model with a short queue."""
    running = Running(model, "--queue", QUEUE, "--neighbours", 0)
    yield running
    running.stop()


class Asking:
    """Clients that ask at the same time."""

    def __init__(self, url: str, num: int, first: int = 0) -> None:
        self.answers: list[httpx.Response | Exception | None] = [None] * num
        self.threads = [threading.Thread(target=self._ask, args=(url, place, first + place)) for place in range(num)]
        for thread in self.threads:
            thread.start()

    def _ask(self, url: str, place: int, seed: int) -> None:
        try:
            files = [("pictures", ("a.png", png(seed)))]
            self.answers[place] = httpx.post(f"{url}/v1/predict", files=files, timeout=60)
        except httpx.HTTPError as error:
            self.answers[place] = error

    def wait(self) -> list[int | str]:
        for thread in self.threads:
            thread.join()
        return [getattr(answer, "status_code", None) or repr(answer) for answer in self.answers]


def queue_of(running: Running) -> float:
    return running.metric("vitreous_queue_pictures")


def test_a_full_queue_refuses_and_says_when_to_come_back(slow):
    slow.signal_workers(signal.SIGSTOP)
    asking = Asking(slow.url, QUEUE)
    slow.wait_for(lambda: queue_of(slow) == QUEUE)
    refused = slow.predict(png(1))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"].startswith("too many pictures")
    assert slow.client.get("/readyz").status_code == 200
    slow.signal_workers(signal.SIGCONT)
    assert asking.wait() == [200] * QUEUE
    assert slow.predict(png(1)).status_code == 200
    assert queue_of(slow) == 0


def test_a_refusal_does_not_wait_for_the_body(slow):
    """The head alone is enough for a 429: the client here never sends what it announces."""
    slow.signal_workers(signal.SIGSTOP)
    asking = Asking(slow.url, QUEUE)
    slow.wait_for(lambda: queue_of(slow) == QUEUE)
    with socket.create_connection(slow.address, timeout=20) as client:
        head = f"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:{slow.port}\r\ncontent-type: image/png\r\n"
        client.sendall(f"{head}content-length: 1000000\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 429")
    slow.signal_workers(signal.SIGCONT)
    assert asking.wait() == [200] * QUEUE


def test_many_pictures_take_many_places(slow):
    slow.signal_workers(signal.SIGSTOP)
    asking = Asking(slow.url, QUEUE - 2)
    slow.wait_for(lambda: queue_of(slow) == QUEUE - 2)
    assert slow.predict(png(1), png(2), png(3)).status_code == 429
    assert queue_of(slow) == QUEUE - 2  # nothing of a refused request stays
    slow.signal_workers(signal.SIGCONT)
    assert asking.wait() == [200] * (QUEUE - 2)
    assert slow.predict(*[png(seed) for seed in range(QUEUE)]).status_code == 200
    assert slow.predict(*[png(seed) for seed in range(QUEUE + 1)]).status_code == 413


def test_a_client_that_leaves_frees_its_place(slow):
    """Those not yet in a batch are taken back: the model never sees them. Two large pictures hold both decoders, so
    that the others are still waiting when the process reads that their clients have left."""
    large = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(large, "png")
    before = slow.metric("vitreous_batch_pictures_sum")
    slow.signal_workers(signal.SIGSTOP)
    clients = []
    for seed in range(QUEUE):
        data = large.getvalue() if seed < NUM_DECODERS else png(seed)
        client = socket.create_connection(slow.address)
        head = f"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1:{slow.port}\r\ncontent-type: image/png\r\n"
        client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        clients.append(client)
        slow.wait_for(lambda: queue_of(slow) == len(clients))
    for client in clients:
        client.close()
    slow.wait_for(lambda: slow.metric('vitreous_requests_total{code="499"') == QUEUE)
    slow.signal_workers(signal.SIGCONT)
    slow.wait_for(lambda: queue_of(slow) == 0)
    assert slow.metric("vitreous_batch_pictures_sum") - before <= NUM_DECODERS  # what these already had
    assert slow.predict(png(1)).status_code == 200


def test_a_killed_model_comes_back(slow):
    slow.signal_workers(signal.SIGSTOP)
    asking = Asking(slow.url, 4)
    slow.wait_for(lambda: queue_of(slow) == 4)
    (killed,) = slow.workers()
    os.kill(killed, signal.SIGKILL)
    assert asking.wait() == [503] * 4
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in asking.answers)
    assert slow.client.get("/healthz").status_code == 200
    seen = {slow.client.get("/readyz").status_code, slow.predict(png(1)).status_code}
    assert seen == {503}
    slow.wait_until_ready()
    assert slow.workers() != [killed]
    assert slow.predict(png(1)).status_code == 200
    assert slow.metric("vitreous_process_starts") == 2


def test_the_end_loses_no_accepted_request_and_leaves_no_process(model):
    running = Running(model, "--queue", 50, "--neighbours", 0)
    workers = running.workers()
    stop, codes, errors = threading.Event(), [], []

    def ask(seed: int) -> None:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            while not stop.is_set():
                try:
                    codes.append(client.post("/v1/predict", files=[("pictures", ("a.png", png(seed)))]).status_code)
                except httpx.ConnectError:  # nobody listens any more
                    return
                except httpx.HTTPError as error:  # an answer that never came
                    errors.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    running.wait_for(lambda: len(codes) > 40)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert set(codes) == {200}
    assert not errors
    assert not [worker for worker in workers if is_alive(worker)]
    running.stop()


def test_accepted_requests_are_answered_after_the_signal(model):
    """The model stands still while the signal comes: all that was admitted is answered all the same."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, here and in the server
    try:
        running = Running(model, "--queue", 8, "--neighbours", 0)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.signal_workers(signal.SIGSTOP)
    workers = running.workers()
    asking = Asking(running.url, 8)
    running.wait_for(lambda: queue_of(running) == 8)
    running.process.send_signal(signal.SIGHUP)  # as a terminal that is closed sends it: ended with care too
    running.wait_for(lambda: refuses_connections(running))
    for worker in workers:
        os.kill(worker, signal.SIGHUP)  # all processes get it: it must not listen
        os.kill(worker, signal.SIGTERM)  # as a service manager would
        os.kill(worker, signal.SIGCONT)
    assert asking.wait() == [200] * 8
    assert running.process.wait(30) == 0
    assert not [worker for worker in workers if is_alive(worker)]
    running.stop()


def refuses_connections(running: Running) -> bool:
    try:
        socket.create_connection(running.address, timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_no_model_outlives_a_server_that_was_killed(model):
    running = Running(model, "--neighbours", 0)
    workers = running.workers()
    assert len(workers) == 1
    running.process.kill()
    running.process.wait()
    for _ in range(500):
        if not any(is_alive(worker) for worker in workers):
            break
        time.sleep(0.02)
    assert not [worker for worker in workers if is_alive(worker)]
    assert not children(running.process.pid)
    running.stop()


def test_supervision_survives_whatever_a_start_meets(model, monkeypatch):
    """No descriptors, no threads, no memory, nonsense from the process: then a start that works."""
    settings = ServeSettings(models=(str(model),), device="cpu", threads=2, neighbours=0, examples=0)
    process = ModelProcess("tiny", str(model), settings, lambda name, size: None)
    spawn, read, pauses, sleep = process._spawn, frames.read, [], asyncio.sleep
    failures = [OSError(errno.EMFILE, "x"), RuntimeError("can't start new thread"), MemoryError(), BlockingIOError()]
    failures += [OSError(errno.ENOMEM, "x")] * (supervisor.GIVEN_UP - len(failures))

    async def failing_spawn():
        if failures:
            raise failures.pop(0)
        return await spawn()

    async def nonsense_first(reader):
        monkeypatch.setattr(frames, "read", read)
        raise ValueError("not a frame")

    monkeypatch.setattr(process, "_spawn", failing_spawn)
    monkeypatch.setattr(frames, "read", nonsense_first)
    monkeypatch.setattr(supervisor.asyncio, "sleep", lambda seconds: (pauses.append(seconds), sleep(0))[1])

    async def watch() -> tuple[bool, bool]:
        await process.start()
        while process.num_failures < supervisor.GIVEN_UP:
            await sleep(0)
        gave_up = process.has_given_up
        while not process.is_ready:
            await sleep(0.02)
        found = gave_up, process.has_given_up
        await process.stop()
        return found

    assert asyncio.run(watch()) == (True, False)
    assert not failures
    assert (process.queue, process.max_batch) == (6, 4)  # what the settings leave open, the model says
    assert settings.pictures_per_request == 16
    assert pauses == [supervisor.PAUSES_S[min(num, 6)] for num in range(supervisor.GIVEN_UP + 2)]


def test_a_request_larger_than_the_queue_is_admitted_alone():
    process = ModelProcess("tiny", "model", ServeSettings(models=("model",)), lambda name, size: None)
    process.is_ready, process.queue = True, 8
    process.check_room(16)
    process.admitted = 1
    process.check_room(7)
    with pytest.raises(Refused, match="too many pictures") as refused:
        process.check_room(8)
    assert refused.value.status == 429


def test_liveness_fails_once_a_model_has_been_given_up():
    service = Service(ServeSettings(models=("model",)), ["tiny"])
    (process,) = service.models.values()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(service, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/healthz")

    process.num_failures = supervisor.GIVEN_UP - 1
    assert asyncio.run(ask()).status_code == 200
    process.num_failures += 1
    refused = asyncio.run(ask())
    assert (refused.status_code, refused.json()) == (503, {"error": "the process of tiny could not be started"})
    process.is_ready = True  # it came back after all
    assert asyncio.run(ask()).status_code == 200
