"""Predictions of a plain ViT, ours against timm's, side by side in one process on one GPU.

    python benchmarks/inference.py --out docs/results/inference.json

Both have the same weights. First every way is held against float32: by how much its logits differ, as a share of their
size. Then batches of pictures that lie on the device go through all ways in turn, and the medians of the rounds are
compared. At 256 pictures it is throughput; at 1, 8 and 32 each batch is waited for, so that it is latency, too.

ours                what predict, evaluate, embed and serve do on a GPU: bfloat16, one CUDA graph, nothing compiled
ours compiled       the same with its kernels fused by torch.compile
ours autotuned      --autotune: mode max-autotune, which takes minutes
ours fp8            --fp8: compiled, dense layers in 8 bits: torch's scaled products, a scale per row and per column
timm                bfloat16 weights, eager
timm compiled       torch.compile
timm overhead       torch.compile, mode reduce-overhead: CUDA graphs too

`--probe DATA` measures what 8 bits cost: a linear layer on frozen features of an encoder that ships, in bfloat16 and in
8 bits. A way that fails says so in its place, and the rest goes on; without timm ours are measured alone. `--tiny`
tries it all out on any machine.
"""

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from side_by_side import noted, there
from vitreous import create_model
from vitreous.cli import one_line_errors
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.probes import linear_probe
from vitreous.jobs.data import batches_for
from vitreous.models.flops import flops
from vitreous.nn.graphed import Graphed
from vitreous.nn.half import half_where_native
from vitreous.tasks.base import Task
from vitreous.training.devices import World
from vitreous.training.environment import environment
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported
from vitreous.weights.timm import Timm
from vitreous.weights.trained import Trained

PAIRS = {"vit_s16": "vit_small_patch16_224", "vit_b16": "vit_base_patch16_224", "vit_l16": "vit_large_patch16_224"}
SECONDS = 0.4  # of a round, at least
BATCHES = 4  # that are taken in turn: nobody asks for the same pictures again
FAR = 0.05  # from float32, of the size of the logits: so far no rounding takes them, and a mistake does
Way = Callable[[Tensor], Tensor]


# ---- 8 bits


class Fp8(nn.Module):
    """A dense layer in e4m3: weights rounded once with a scale per output, inputs as they come with one per token."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(dim=1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max  # (out, 1)
        self.register_buffer("weight", (weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        rows, largest = x.reshape(-1, x.shape[-1]).float(), torch.finfo(torch.float8_e4m3fn).max
        scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest  # (rows, 1)
        eighth = (rows / scale).to(torch.float8_e4m3fn)
        if x.is_cuda:
            product = torch._scaled_mm(
                eighth, self.weight.T, scale, self.scale.T, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        else:  # the same in float32, where there is no such product
            product = ((eighth.float() @ self.weight.float().T) * scale * self.scale.T).to(torch.bfloat16)
        found = product.view(*x.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


def in_8_bits(module: nn.Module) -> nn.Module:
    """Every dense layer of the blocks, where nearly all the work is; in place."""
    for block in module.get_submodule("encoder.blocks" if isinstance(module, Task) else "blocks"):
        for parent in list(block.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(parent, name, Fp8(layer))
    return module


# ---- the ways


def logits(task: Task, images: Tensor) -> Tensor:
    found: Tensor = task.predict(images).logits  # type: ignore[attr-defined]
    return found


def graphed(task: Task, compiled: str | None = None) -> Way:
    """As predictors do it."""
    forward = Graphed(task, logits, compiled)

    def way(images: Tensor) -> Tensor:
        with half_where_native(images.device):
            return forward(images)

    return way


def theirs(model: nn.Module, **compiling: Any) -> Way:
    forward = torch.compile(model, dynamic=False, **compiling) if compiling else model

    def way(images: Tensor) -> Tensor:
        found: Tensor = forward(images.to(torch.bfloat16))
        return found

    return way


def our_model(name: str, tiny: bool) -> Task:
    torch.manual_seed(0)
    changes = {"picture_px": 32, "patch": 8, "width": 192, "heads": 3, "mlp_width": 768, "depth": 12} if tiny else {}
    ours = create_model(name, num_classes=1000, **changes)
    nn.init.normal_(ours.head.weight, std=0.02)
    return ours


def pair(name: str, tiny: bool) -> tuple[Task, nn.Module]:
    """Ours and timm's, of equal weights."""
    timm, ours = imported("timm"), our_model(name, tiny)
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "num_heads": 3, "depth": 12} if tiny else {}
    other = timm.create_model(PAIRS[name], num_classes=1000, **small)
    nn.init.normal_(other.head.weight, std=0.02)
    _, weights, report = formats.read(Given(other.state_dict(), {}, PAIRS[name]), Timm())
    assert report.is_exact, report.mismatch()
    ours.load_state_dict(weights)
    return ours, other


def ways_of(ours: Task, other: nn.Module | None, options: argparse.Namespace) -> dict[str, Way]:
    ways: dict[str, Way] = {"ours": graphed(ours)}
    if not options.eager:
        ways["ours compiled"] = graphed(ours, "default")
    if options.autotune:
        ways["ours autotuned"] = graphed(ours, "max-autotune-no-cudagraphs")
    if options.fp8:
        ways["ours fp8"] = graphed(in_8_bits(copy.deepcopy(ours)), None if options.eager else "default")
    if other is not None:
        half = copy.deepcopy(other).to(torch.bfloat16)
        ways["timm"] = theirs(half)
        if not options.eager:
            ways |= {
                "timm compiled": theirs(half, mode="default"),
                "timm overhead": theirs(half, mode="reduce-overhead"),
            }
    return ways


# ---- measuring


def checked(way: Way, batches: list[Tensor], exact: list[Tensor], allowed: float) -> dict[str, float]:
    """Runs it until it is as fast as it gets; its largest error, and the most memory that took."""
    on_gpu, before = batches[0].is_cuda, 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began, error = time.perf_counter(), 0.0
    for _ in range(2):
        for images, wanted in zip(batches, exact, strict=True):
            error = max(error, float((way(images).float() - wanted).norm() / wanted.norm()))
    facts = {"error": round(error, 5), "first_s": round(time.perf_counter() - began, 1)}
    assert error < allowed, f"{error:.3f} from float32"
    return facts | ({"peak_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20)} if on_gpu else {})


def milliseconds(way: Way, batches: list[Tensor], waits: bool) -> float:
    """Of a batch; `waits`: for each, before the next."""
    wait = torch.cuda.synchronize if batches[0].is_cuda else lambda: None
    wait()
    began, done = time.perf_counter(), 0
    while done < len(batches) or time.perf_counter() - began < SECONDS:
        for images in batches:
            way(images)
            if waits:
                wait()
        done += len(batches)
        if not waits and done % 16 == 0:  # the host is far ahead otherwise
            wait()
    wait()
    return 1000 * (time.perf_counter() - began) / done


@torch.inference_mode()
def compare(name: str, batch_size: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    result: dict[str, Any] = {"model": name, "batch_size": batch_size, "waited_for": batch_size < 256}
    both = pair(name, options.tiny) if there("timm", result) else (our_model(name, options.tiny), None)
    ours, other = (one and one.to(device).eval() for one in both)
    side = ours.encoder.picture_px[0]
    batches = [torch.randn(batch_size, 3, side, side, device=device) for _ in range(BATCHES)]
    result["parameters"] = sum(p.numel() for p in ours.parameters())
    with torch.backends.cudnn.flags(allow_tf32=False):  # float32, so that a difference would be one of mathematics
        exact = [torch.cat([logits(ours, part) for part in images.split(64)]) for images in batches]
        if other is not None:
            theirs_too = torch.cat([other(part) for part in batches[0].split(64)])
            result["difference_in_float32"] = float((theirs_too - exact[0]).abs().max())
            assert result["difference_in_float32"] < 2e-3, result
    ways, result["ways"], result["errors"] = ways_of(ours, other, options), {}, {}
    for who, way in ways.items():
        with noted(result["errors"], who):
            result["ways"][who] = checked(way, batches, exact, 4 * FAR if "fp8" in who else FAR)
    ways = {who: way for who, way in ways.items() if who in result["ways"]}
    times: dict[str, list[float]] = {who: [] for who in ways}
    for _ in range(options.rounds):
        for who, way in ways.items():
            times[who].append(milliseconds(way, batches, waits=batch_size < 256))
    medians = {who: statistics.median(found) for who, found in times.items()}
    work = flops(ours.encoder) * batch_size
    for who, median in medians.items():
        facts = {"ms": round(median, 4), "images_s": round(1000 * batch_size / median, 1)}
        facts["spread"] = round((max(times[who]) - min(times[who])) / median, 3)
        result["ways"][who] |= facts | {"tflops": round(work / median / 1e9, 1)}
    peer = "timm" if options.eager else "timm compiled"
    if peer in medians:
        result["times_as_fast"] = {who: round(medians[peer] / ms, 3) for who, ms in medians.items()}
    return result


def ceiling(device: torch.device, size: int) -> float:
    """TFLOP/s of one large product in bfloat16: what any model stays below."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    found = [milliseconds(lambda one: one @ b, [a], waits=False) for _ in range(3)]
    return round(2 * size**3 / statistics.median(found) / 1e9, 1)


# ---- what 8 bits cost


def cost_of_8_bits(where: str, encoder: str, world: World) -> dict[str, Any]:
    """Accuracy of a linear layer on frozen features of real pictures: penalties chosen on a part of train, test read
    once for each way."""
    from vitreous.data.sources import DataSettings

    trained, splits = Trained.load(encoder), DataSettings(where=where).build()
    assert splits.test is not None
    result: dict[str, Any] = {"encoder": encoder, "data": where}
    changes: dict[str, Callable[[nn.Module], nn.Module]] = {"bf16": lambda module: module, "fp8": in_8_bits}
    for name, change in changes.items():
        torch.manual_seed(0)
        sets: list[FeatureSet] = []
        for part in (splits.train, splits.test):
            made = trained.encoder().to(world.device)
            with torch.autocast(world.device.type, torch.bfloat16):
                sets.append(pooled_features(change(made), batches_for(trained, part, world), world.device))  # type: ignore[arg-type]
        probe = linear_probe(sets[0].to(world.device), sets[1].to(world.device))
        result[name] = {"accuracy": probe.accuracy.value, "low": probe.accuracy.low, "high": probe.accuracy.high}
    result["points_lost"] = round(100 * (result["bf16"]["accuracy"] - result["fp8"]["accuracy"]), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[256, 1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--probe", nargs="*", default=[], metavar="DATA", help="real sets, to see what 8 bits cost")
    parser.add_argument("--encoder", default="vitreous-s", help="for --probe")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    world = World.join("auto")
    report: dict[str, Any] = {"environment": environment()}
    report["ceiling_tflops"] = ceiling(world.device, 256 if options.tiny else 8192)
    report |= {"results": [], "cost_of_8_bits": []}
    jobs: list[tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = [
        ("results", {"model": name, "batch_size": size}, partial(compare, name, size, options, world.device))
        for name in options.models
        for size in options.batch_sizes
    ]
    for where in options.probe:
        jobs.append(("cost_of_8_bits", {"data": where}, partial(cost_of_8_bits, where, options.encoder, world)))
    for kind, found, job in jobs:
        with noted(found, "failed"):
            found.update(job())
        report[kind].append(found)
        print(json.dumps(found), flush=True)
        if options.out:
            options.out.write_text(json.dumps(report, indent=2) + "\n")
        gc.collect()
        torch.compiler.reset()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    if not any(found.get("ways") or "points_lost" in found for _, found, _ in jobs):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
