"""Loading a ViT-L/16 from a file of 1.2 GB, ours against timm's, each in processes of its own, in turn.

    python benchmarks/load_weights.py --out docs/results/load_weights.json

A random file in timm's layout is written first, and read once so that both find it in the page cache. Each process then
builds the model with these weights; measured are the seconds and the peak memory above that of its imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

START = """
import json, sys, time
from pathlib import Path
import torch

def memory(field):
    return int(Path("/proc/self/status").read_text().partition(field + ":")[2].split()[0]) / 1024

# torchvision, which timm imports, needs these two beside a CPU build of torch.
library = torch.library.Library("torchvision", "DEF")
if not torch.cuda.is_available():
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
path = sys.argv[1]
"""
WRITE = """
import timm
from safetensors.torch import save_file
model = timm.create_model(path.rsplit("/", 1)[-1].removesuffix(".safetensors"))
save_file({name: torch.randn_like(value) * 0.02 for name, value in model.state_dict().items()}, path)
"""
OURS = """
import vitreous.weights.trained
from vitreous.weights import formats
formats.formats()
before, begin = memory("VmRSS"), time.perf_counter()
model = vitreous.weights.trained.load(path).task()
"""
TIMM = """
import timm
name = path.rsplit("/", 1)[-1].removesuffix(".safetensors")
before, begin = memory("VmRSS"), time.perf_counter()
model = timm.create_model(name, checkpoint_path=path)
"""
END = """
seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds, "peak_mb": memory("VmHWM") - before}))
"""


def child(code: str, path: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", START + code, str(path)], check=True, stdout=subprocess.PIPE)
    return ended.stdout.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_large_patch16_224", help="a plain ViT of timm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the file is written; by default among temporary files")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        path = Path(folder) / f"{words.model}.safetensors"
        child(WRITE, path)
        size_mb = path.stat().st_size / 2**20
        codes = {"ours": OURS + END, "timm": TIMM + END}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in codes}
        for number in range(words.rounds + 1):
            for name, code in codes.items():
                result = json.loads(child(code, path))
                if number:  # the first round brings file and libraries into the page cache
                    found[name].append(result)
    result = {"model": words.model, "file_mb": round(size_mb)}
    for name, rounds in found.items():
        seconds = statistics.median(one["seconds"] for one in rounds)
        peak = max(one["peak_mb"] for one in rounds)
        result[name] = {"seconds": round(seconds, 2), "peak_mb": round(peak), "times_file": round(peak / size_mb, 2)}
        print(f"{name:5} {seconds:6.2f} s  {peak:6.0f} MB  {peak / size_mb:.2f} x the file")
    if words.out:
        words.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
