"""Pictures made to hurt: the service and `predict`, of models and of exported files, say the same about each, in little
memory."""

import json
import subprocess
import sys

from running import save_model

from vitreous.export.job import export

# Two gigabytes more than the models themselves take. One strip of 20,000 pixels, resized whole, would be four.
CODE = """
import io, json, os, resource, struct, sys, tempfile, zlib
from pathlib import Path
import torch
from PIL import Image
from vitreous.data.images import BadPicture, read_picture
from vitreous.prediction.predictor import Predictor
from vitreous.serve.served import open_served

def saved(mode, size, kind="png"):
    stream = io.BytesIO()
    Image.new(mode, size, 1).save(stream, kind)
    return stream.getvalue()

whole = saved("L", (300, 200))
hostile = {
    "wide": saved("L", (20_000, 1)),
    "tall": saved("L", (1, 20_000)),
    "line": saved("1", (40_000_000, 1)),
    "bomb": saved("1", (20_000, 20_000)),
    "cut": whole[:60],
    "text": b"GIF89a is how this text begins",
    "nothing": b"",
    "lies": whole.replace(struct.pack(">I", 300), struct.pack(">I", 60_000), 1),
    "whole": whole,
}

def outcome(ask, path=None):
    # A file is named before the reason, which is the same.
    try:
        return ask()
    except BadPicture as error:
        return f"refused: {str(error).removeprefix(f'{path}: ')}"

torch.set_num_threads(1)
asked = [(Predictor.load(where), open_served(where, "cpu", 1)) for where in sys.argv[1:]]
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (2 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = {}
for name, data in hostile.items():
    path = Path(tempfile.mkdtemp()) / "picture.png"
    path.write_bytes(data)
    for predictor, served in asked:
        found.setdefault(name, []).extend([
            outcome(lambda: predictor(path).best, path),
            outcome(lambda: served.predict([served.prepare(read_picture(data))])[0].best),
        ])
print(json.dumps(found))
"""


def test_one_guard_for_all(tmp_path):
    model = save_model(tmp_path / "model", picture_px=(224, 224), patch=32, depth=1)
    files = [
        export(model, input=kind, num_checks=1, out=tmp_path / f"{kind}.onnx").path for kind in ("pictures", "tensors")
    ]
    command = [sys.executable, "-c", CODE, *map(str, (model, *files))]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    for name, outcomes in found.items():
        assert len(outcomes) == 3 * 2
        assert len(set(outcomes)) == 1, (name, outcomes)
    refused = {name for name, outcomes in found.items() if outcomes[0].startswith("refused: ")}
    assert refused == {"bomb", "cut", "text", "nothing", "lies"}
    assert "20000 x 20000 pixels" in found["bomb"][0]
