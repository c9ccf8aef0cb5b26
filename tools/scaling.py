#!/usr/bin/env python3
"""The numbers of docs/SCALING.md: what it takes to train a large ViT on 300 M pictures with 8, 64 and 1,000 GPUs.

    python tools/scaling.py            # writes its tables into docs/SCALING.md, docs/results/scaling.json and .png

Speed is what benchmarks/large.py measured (docs/results/large.json). Where that is not there, it is an estimate, and
the tables say so: as many FLOP/s as ViT-L/16 reached in docs/results/train_step.json. Decoding is what
benchmarks/files.py measured (docs/results/files.json). Every other input stands below, with where it comes from; the
formulae are the functions after it.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitreous.display.figures import SERIES, drawing, figure

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "SCALING.md"
GB, MB, DAY_S = 1e9, 1e6, 86_400.0

# ---- inputs

PICTURES, EPOCHS = 300e6, 14  # Dosovitskiy et al. 2021, table 3: ViT-H/14 on JFT-300M
BYTES_A_PICTURE = 110e3  # a JPEG of ImageNet, on average
GPUS_A_NODE = 8
NVLINK = 450 * GB  # bytes/s of a GPU in one direction inside a node of H200s: data sheet
NETWORK = 8 * 400e9 / 8  # bytes/s of a node in one direction, by eight ports of 400 Gb/s: data sheet
SLOW_NETWORK = 100e9 / 8  # by one port of 100 Gb/s
REACHED = 0.8  # share of a link's bytes/s that NCCL gets out of it: assumed
BACKWARD = 2 / 3  # of a step, in which gradients can be exchanged meanwhile
MEMORY = 141 * GB  # of an H200
HASHED = 1.8 * GB  # bytes/s of sha256 by a core of an AMD EPYC: openssl speed -bytes 1048576 sha256
WRITTEN = 2.0 * GB  # bytes/s of one NVMe disk or a parallel file system: assumed
COPIED = 20 * GB  # bytes/s from a GPU to the host's memory, which is all that an asynchronous save waits for: assumed
# 419 unexpected interruptions in 54 days of 16,384 GPUs (Grattafiori et al. 2024, The Llama 3 Herd of Models, 3.3.4).
GPU_HOURS_A_FAILURE = 16_384 * 54 * 24 / 419
RESTART_S = 600.0  # noticing it, finding another node, starting, compiling, reading the checkpoint: assumed


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    flops: float  # of a picture's training step
    pictures_s: float  # of one GPU
    is_measured: bool


@dataclass(frozen=True)
class Cluster:
    gpus: int
    batch_size: int  # over all GPUs

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_A_NODE)


# The paper's batch of 4,096, until it is fewer than 32 pictures per GPU; a multiple of 1,000 streams then.
CLUSTERS = (Cluster(8, 4096), Cluster(64, 4096), Cluster(1000, 32_000))


def model(title: str, name: str, parameters: float, flops: float) -> Model:
    measured = _read("large.json").get(name)
    if isinstance(measured, dict):
        return Model(title, measured["parameters"], flops, measured["images_s"], True)
    (l16,) = (row for row in _read("train_step.json")["results"] if row["model"] == "vit_l16" and row["compiled"])
    return Model(title, parameters, flops, l16["ours_tflops"] * 1e12 / flops, False)


def _read(name: str) -> dict[str, Any]:
    path = RESULTS / name
    return dict(json.loads(path.read_text())) if path.is_file() else {}


# ---- time of a step


def compute_s(model: Model, cluster: Cluster) -> float:
    return cluster.batch_size / cluster.gpus / model.pictures_s


def exchange_s(size: float, cluster: Cluster, network: float) -> float:
    """Seconds for one pass of `size` bytes around all GPUs (an all-gather, or a reduce-scatter): every GPU takes in all
    but its own part. Inside nodes by NVLink, between them by the nodes' ports, both at once; the slower decides."""
    inside = min(cluster.gpus, GPUS_A_NODE)
    within = size * (inside - 1) / inside / NVLINK
    between = size * (cluster.nodes - 1) / cluster.nodes / network
    return max(within, between) / REACHED


def ddp_bytes(model: Model, cluster: Cluster) -> float:
    """Per GPU and step: a ring all-reduce is a reduce-scatter and an all-gather of float32 gradients."""
    return 2 * 4 * model.parameters * (cluster.gpus - 1) / cluster.gpus


def fsdp_bytes(model: Model, cluster: Cluster) -> float:
    """Weights are gathered in bfloat16, for either pass; gradients are summed in float32, and each GPU keeps a part."""
    return (2 + 2 + 4) * model.parameters * (cluster.gpus - 1) / cluster.gpus


def ddp_s(model: Model, cluster: Cluster, network: float) -> float:
    return 2 * exchange_s(4 * model.parameters, cluster, network)


def gather_s(model: Model, cluster: Cluster, network: float) -> float:
    return exchange_s(2 * model.parameters, cluster, network)


def scatter_s(model: Model, cluster: Cluster, network: float) -> float:
    return exchange_s(4 * model.parameters, cluster, network)


def fsdp_s(model: Model, cluster: Cluster, network: float) -> float:
    return 2 * gather_s(model, cluster, network) + scatter_s(model, cluster, network)


def step_s(model: Model, cluster: Cluster, network: float, sharded: bool = False) -> float:
    """Each pass takes as long as its arithmetic or the exchange beside it, whichever is longer."""
    compute, backward = compute_s(model, cluster), ddp_s(model, cluster, network)
    forward = 0.0
    if sharded:
        forward = gather_s(model, cluster, network)
        backward = forward + scatter_s(model, cluster, network)
    return max((1 - BACKWARD) * compute, forward) + max(BACKWARD * compute, backward)


# ---- failures


def checkpoint_bytes(model: Model) -> float:
    """Weights and two moments of AdamW, in float32; an average of the weights would be a third more."""
    return 3 * 4 * model.parameters


def save_s(model: Model, writers: int) -> float:
    """Seconds in which nothing is trained, where training waits for the disk: hashed, then written, by each writer."""
    return checkpoint_bytes(model) / writers * (1 / HASHED + 1 / WRITTEN)


def copy_s(model: Model, writers: int) -> float:
    """The same where saving goes on beside training: the copy to the host's memory."""
    return checkpoint_bytes(model) / writers / COPIED


def failure_s(cluster: Cluster) -> float:
    """Mean time between failures of all GPUs together."""
    return 3600 * GPU_HOURS_A_FAILURE / cluster.gpus


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Seconds of training between checkpoints (Daly 2006, equation 37, which refines Young 1974, sqrt(2 cost M))."""
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = math.sqrt(cost_s / (2 * between_failures_s))
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + ratio / 3 + ratio**2 / 9) - cost_s


def lost_share(interval_s: float, cost_s: float, between_failures_s: float, restart_s: float = RESTART_S) -> float:
    """Of all time, to first order: saving, then half an interval and a restart for every failure."""
    return cost_s / (interval_s + cost_s) + (interval_s / 2 + restart_s) / between_failures_s


# ---- tables


def time_table(model: Model) -> list[list[str]]:
    rows = [["GPUs", "batch (per GPU)", "steps", "step", "pictures/s", "14 epochs", "with failures", "GPU hours"]]
    for cluster in CLUSTERS:
        steps = PICTURES * EPOCHS / cluster.batch_size
        step = step_s(model, cluster, NETWORK)
        total, cost = steps * step, copy_s(model, 1)
        interval = best_interval_s(cost, failure_s(cluster))
        longer = total / (1 - lost_share(interval, cost, failure_s(cluster)))
        rows.append(
            [
                f"{cluster.gpus:,}",
                f"{cluster.batch_size:,} ({cluster.batch_size // cluster.gpus:,})",
                f"{steps:,.0f}",
                f"{1e3 * step:,.0f} ms",
                f"{cluster.batch_size / step:,.0f}",
                _time(total),
                _time(longer),
                f"{cluster.gpus * longer / 3600:,.0f}",
            ]
        )
    return rows


def network_table(model: Model) -> list[list[str]]:
    rows = [
        ["GPUs", "network of a node", "compute", "DDP: bytes", "exchange", "step", "FSDP2: bytes", "exchange", "step"]
    ]
    for cluster in CLUSTERS:
        for network, words in ((NETWORK, "8 x 400 Gb/s"), (SLOW_NETWORK, "100 Gb/s")):
            if cluster.nodes == 1 and network is SLOW_NETWORK:
                continue
            rows.append(
                [f"{cluster.gpus:,}", words if cluster.nodes > 1 else "NVLink only", _ms(compute_s(model, cluster))]
            )
            for size, exchange, sharded in ((ddp_bytes, ddp_s, False), (fsdp_bytes, fsdp_s, True)):
                step = step_s(model, cluster, network, sharded)
                rows[-1] += [
                    f"{size(model, cluster) / GB:.2f} GB",
                    _ms(exchange(model, cluster, network)),
                    f"{_ms(step)} ({step / compute_s(model, cluster) - 1:+.0%})",
                ]
    return rows


def storage_table(model: Model) -> list[list[str]]:
    rows = [["GPUs", "nodes", "read by all", "by a node", "a node's share of the pictures", "cores to decode, per GPU"]]
    decoded_a_core = _read("files.json")["pipelines"]["ours"]["pictures_per_s"]
    for cluster in CLUSTERS:
        pictures_s = cluster.batch_size / step_s(model, cluster, NETWORK)
        rows.append(
            [
                f"{cluster.gpus:,}",
                f"{cluster.nodes:,}",
                f"{pictures_s * BYTES_A_PICTURE / GB:.2f} GB/s",
                f"{pictures_s * BYTES_A_PICTURE / cluster.nodes / GB:.2f} GB/s",
                f"{PICTURES * BYTES_A_PICTURE / cluster.nodes / 1e12:.2f} TB",
                f"{pictures_s / cluster.gpus / decoded_a_core:.2f}",
            ]
        )
    return rows


def failure_table(model: Model) -> list[list[str]]:
    rows = [
        [
            "GPUs",
            "a failure every",
            "in the run",
            "checkpoint costs",
            "best interval",
            "lost",
            "lost at 120 s",
            "lost at 1 h",
        ]
    ]
    for cluster in CLUSTERS:
        between = failure_s(cluster)
        run_s = PICTURES * EPOCHS / cluster.batch_size * step_s(model, cluster, NETWORK)
        for words, cost in (("waiting for one writer", save_s(model, 1)), ("beside training", copy_s(model, 1))):
            interval = best_interval_s(cost, between)
            rows.append(
                [
                    f"{cluster.gpus:,}",
                    _time(between),
                    f"{run_s / between:.2f}",
                    f"{cost:.2g} s, {words}",
                    _time(interval),
                    *(f"{lost_share(seconds, cost, between):.2%}" for seconds in (interval, 120.0, 3600.0)),
                ]
            )
    return rows


def models_table(models: tuple[Model, ...]) -> list[list[str]]:
    rows = [
        [
            "",
            "parameters",
            "training FLOP per picture",
            "pictures/s of an H200",
            "FLOP/s",
            "state per GPU: DDP",
            "FSDP2, 64 GPUs",
            "checkpoint",
        ]
    ]
    for one in models:
        rows.append(
            [
                one.name,
                f"{one.parameters / 1e6:,.0f} M",
                f"{one.flops / 1e12:.2f} T",
                f"{one.pictures_s:,.0f}, {'measured' if one.is_measured else '**estimate**'}",
                f"{one.pictures_s * one.flops / 1e12:,.0f} T",
                f"{16 * one.parameters / GB:.1f} GB ({16 * one.parameters / MEMORY:.0%})",
                f"{16 * one.parameters / 64 / GB:.2f} GB",
                f"{checkpoint_bytes(one) / GB:.1f} GB",
            ]
        )
    return rows


def exchanged_table() -> list[list[str]]:
    """What processes sent on CPUs. gloo has no reduce-scatter: it sums the whole on every rank."""
    rows = [["", "processes", "counted", "formula", "all-gathers per step", "largest"]]
    for row in _read("exchange.json")["rows"]:
        cluster, one = Cluster(row["ranks"], row["ranks"]), Model("", row["parameters"], 0, 0, True)
        expected = ddp_bytes(one, cluster)
        if row["engine"] == "FSDP2":
            expected += fsdp_bytes(one, cluster) / 2  # weights alone, beside whole gradients
        sizes = [f"{row['gathers']:,}", f"{row['largest'] / MB:.1f} MB"] if row["gathers"] else ["none", ""]
        counted = [f"{size / MB:.1f} MB" for size in (row["bytes"], expected)]
        rows.append([row["engine"], f"{row['ranks']}", *counted, *sizes])
    return rows


def order_table() -> list[list[str]]:
    rows = [["order", "pictures", "more memory than for 2,048", "first batch", "which pictures, per batch"]]
    for row in _read("order.json")["rows"]:
        times = [f"{row['first_batch_s']:.2f} s", f"{row['order_ms']:.2f} ms"]
        rows.append([row["way"], f"{row['pictures']:,}", f"{row['more_mb']:,.0f} MB", *times])
    return rows


def opening_table() -> list[list[str]]:
    rows = [["", "pictures", "time per million", "memory per picture, at its highest"]]
    for row in _read("order.json")["opening"]:
        per_million = f"{row['us_per_picture']:,.0f} s"
        rows.append([row["way"], f"{row['pictures']:,}", per_million, f"{row['peak_bytes_per_picture']:,} bytes"])
    return rows


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"


def _time(seconds: float) -> str:
    for unit, size in (("days", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def markdown(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def with_tables(page: str, tables: dict[str, str]) -> str:
    """Each between its two comments."""
    for name, table in tables.items():
        found = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not found.search(page):
            raise SystemExit(f"{PAGE}: no <!-- {name} --> ... <!-- end --> in it")
        page = found.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)
    return page


# ---- figure


@drawing
def drawn(model: Model) -> Figure:
    """Time lost by the interval of checkpoints; and in a step, by the network and the pictures that hide it."""
    made = figure(9.0, 3.6)
    lost, step = made.subplots(1, 2)
    intervals = [10 ** (1 + number / 20) for number in range(81)]
    for cluster, colour in zip(CLUSTERS, SERIES, strict=False):
        between = failure_s(cluster)
        for cost, line in ((save_s(model, 1), "-"), (copy_s(model, 1), "--")):
            shares = [100 * lost_share(seconds, cost, between) for seconds in intervals]
            label = f"{cluster.gpus:,} GPUs" if line == "-" else None
            lost.plot(intervals, shares, line, color=colour, label=label)
            best = best_interval_s(cost, between)
            if best <= intervals[-1]:
                lost.plot([best], [100 * lost_share(best, cost, between)], "o", color=colour)
    lost.set(xscale="log", yscale="log", xlabel="seconds between checkpoints", ylabel="time lost, %", ylim=(1e-3, 100))
    lost.set_title("training waits for the disk (lines) or not (dashes)")
    lost.legend()
    shares = [2**number for number in range(11)]
    for (network, words), colour in zip(((NETWORK, "8 x 400 Gb/s"), (SLOW_NETWORK, "100 Gb/s")), SERIES, strict=False):
        for sharded, line in ((False, "-"), (True, "--")):
            clusters = [Cluster(1000, 1000 * share) for share in shares]
            slower = [step_s(model, one, network, sharded) / compute_s(model, one) for one in clusters]
            step.plot(shares, slower, line, color=colour, label=f"{'FSDP2' if sharded else 'DDP'}, {words}")
    step.set(xscale="log", yscale="log", xlabel="pictures per GPU and step", ylabel="a step / its arithmetic")
    step.set_title("1,000 GPUs, by the network of a node of eight")
    step.set_xticks(shares, [str(share) for share in shares])
    step.set_yticks([1, 2, 5, 10, 50, 200], ["1", "2", "5", "10", "50", "200"])
    step.minorticks_off()
    step.legend()
    return made


def main() -> None:
    h14 = model("ViT-H/14", "vit_h14", 632.0e6, 1.0038e12)
    g14 = model("ViT-G/14", "vit_g14", 1844.6e6, 2.9025e12)
    makers: dict[str, Callable[[Model], list[list[str]]]] = {
        "time": time_table,
        "network": network_table,
        "storage": storage_table,
        "failures": failure_table,
    }
    rows = {"models": models_table((h14, g14)), **{name: make(h14) for name, make in makers.items()}}
    rows |= {"exchanged": exchanged_table(), "order": order_table(), "opening": opening_table()}
    tables = {name: markdown(found) for name, found in rows.items()}
    PAGE.write_text(with_tables(PAGE.read_text(), tables))
    document = {"command": "python tools/scaling.py", "models": [asdict(h14), asdict(g14)], "tables": rows}
    (RESULTS / "scaling.json").write_text(json.dumps(document, indent=1) + "\n")
    drawn(h14).savefig(RESULTS / "scaling.png", dpi=150)
    print("\n\n".join(tables.values()))


if __name__ == "__main__":
    main()
