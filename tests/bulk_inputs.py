"""What tests of many pictures share: a small model, pictures of every kind, and a server that can be told to wait."""

import io
import tarfile
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from PIL import Image

from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("cat", "dog", "emu")


def save_model(folder, seed=0):
    torch.manual_seed(seed)
    model, task = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2), ClassifySettings()
    built = task.build(model.build(), CLASSES)
    torch.nn.init.normal_(built.head.weight)
    card = Card(model=model, task=task, classes=CLASSES, preprocessing=Preprocessing(size_px=(8, 8)))
    Trained(card, built.state_dict(), "here").save(folder)


def picture(seed):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(out, "png")
    return out.getvalue()


def write_tar(path, members, layout=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=layout) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


class Served:
    """Pictures 00.png, 01.png ... on a real server. `before(name, time)` is called before an answer, and may wait, or
    return the status to answer with."""

    def __init__(self, num, before):
        self.content = {f"{number:02}.png": picture(number) for number in range(num)}
        self.before, self.asked, self.lock = before, Counter(), threading.Lock()

    def status(self, name):
        with self.lock:
            self.asked[name] += 1
            time = self.asked[name]
        return self.before(name, time) or (200 if name in self.content else 404)


@contextmanager
def served(num, before=lambda name, time: None):
    """The address, and what is served there."""
    here = Served(num, before)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.strip("/")
            status = here.status(name)
            body = here.content.get(name, b"") if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
