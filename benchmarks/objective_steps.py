"""A training step of MAE, SimCLR and DINO with ViT-B/16 at 224 px, ours against a plain one, in one process.

    python benchmarks/objective_steps.py --seconds 240 --out docs/results/objective_steps.json

lightly is not installed where we measure. The other side is written here from the papers around timm's ViT, as their
authors' code and lightly do it: the same widths and depths, as many parameters that learn (asserted), fused AdamW,
bf16; as it is, and with its loss under torch.compile. Ours is the step of the real training loop as one CUDA graph.
What fails is reported in its place, and the rest goes on; without timm ours is measured alone.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from one_step import Step, loop_on, plain_step
from side_by_side import noted, ready, there
from train_step import in_turn
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models import ViTSettings
from vitreous.objectives.base import Objective
from vitreous.objectives.dino import DINOSettings
from vitreous.objectives.mae import MAESettings
from vitreous.objectives.simclr import SimCLRSettings
from vitreous.training.environment import environment
from vitreous.weights.peers import imported

BATCHES = {"mae": 256, "simclr": 128, "dino": 32}
LOCAL_PX, NUM_LOCAL = 96, 8
TINY = {"embed_dim": 64, "depth": 2, "num_heads": 2}


class PlainMAE(nn.Module):
    """He et al. 2021: shuffle, keep a quarter, encode, put mask tokens among the encoded, decode all."""

    def __init__(self, encoder: nn.Module, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.pos_embed.requires_grad_(False)
        self.embed, self.mask = nn.Linear(encoder.embed_dim, width), nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("positions", torch.randn(1, encoder.pos_embed.shape[1], width))
        block = imported("timm").models.vision_transformer.Block
        self.blocks = nn.ModuleList(block(width, heads, qkv_bias=True) for _ in range(depth))
        self.norm, self.predict = nn.LayerNorm(width), nn.Linear(width, 3 * 16 * 16)

    def forward(self, images: Tensor) -> Tensor:
        e, B = self.encoder, len(images)
        x = e.patch_embed(images) + e.pos_embed[:, 1:]
        N, D = x.shape[1:]
        order = torch.rand(B, N, device=x.device).argsort(dim=1)
        back, kept = order.argsort(dim=1), order[:, : N // 4]
        x = x.gather(1, kept[..., None].expand(-1, -1, D))
        x = torch.cat([(e.cls_token + e.pos_embed[:, :1]).expand(B, -1, -1), x], dim=1)
        x = self.embed(e.norm(e.blocks(x)))
        masks = self.mask.to(x.dtype).expand(B, N - N // 4, -1)
        rest = torch.cat([x[:, 1:], masks], dim=1).gather(1, back[..., None].expand(-1, -1, x.shape[-1]))
        x = torch.cat([x[:, :1], rest], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        predicted = self.predict(self.norm(x))[:, 1:]
        side = images.shape[-1] // 16
        target = images.reshape(B, 3, side, 16, side, 16).permute(0, 2, 4, 3, 5, 1).reshape(B, N, -1)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6) ** 0.5
        hidden = (back >= N // 4).float()
        return (((predicted.float() - target) ** 2).mean(-1) * hidden).sum() / hidden.sum()


class PlainSimCLR(nn.Module):
    """Chen et al. 2020: every view against all others."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        z = F.normalize(self.head(self.encoder(torch.cat([first, second]))).float(), dim=1)
        logits = (z @ z.T / 0.1).fill_diagonal_(float("-inf"))
        return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(first)))


class PlainDINO(nn.Module):
    """Caron et al. 2021: global crops and local ones, each size through the student by itself."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.teacher = copy.deepcopy(nn.Sequential(encoder, head)).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, head[-1].out_features))

    def forward(self, *views: Tensor) -> Tensor:
        globals_, locals_ = torch.cat(views[:2]), torch.cat(views[2:])
        scores = self.head(torch.cat([self.encoder(globals_), self.encoder(locals_)]))
        with torch.no_grad():
            taught = self.teacher(globals_)
            targets = ((taught.float() - self.centre) / 0.04).softmax(-1).chunk(2)
            self.centre.lerp_(taught.float().mean(0, keepdim=True), 0.1)
        total, logits = scores.new_zeros((), dtype=torch.float32), (scores.float() / 0.1).chunk(len(views))
        for i, target in enumerate(targets):
            for j, one in enumerate(logits):
                if i != j:
                    total = total - (target * one.log_softmax(-1)).sum(-1).mean()
        return total / (2 * (len(views) - 1))

    @torch.no_grad()
    def follow(self) -> None:
        student = [*self.encoder.parameters(), *self.head.parameters()]
        for mine, theirs in zip(self.teacher.parameters(), student, strict=True):
            mine.mul_(0.996).add_(theirs, alpha=0.004)


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


def plain(name: str, objective: Objective, sizes: dict[str, Any]) -> nn.Module:
    encoder = imported("timm").create_model(
        "vit_base_patch16_224", num_classes=0, dynamic_img_size=name == "dino", **sizes
    )
    if name == "mae":
        first = objective.decoder.blocks[0].attention
        return PlainMAE(encoder, first.width, len(objective.decoder.blocks), first.heads)
    if name == "simclr":
        return PlainSimCLR(encoder, copy.deepcopy(objective.projector))
    layers = copy.deepcopy(objective.student.head.layers)
    prototypes = objective.student.head.prototypes.weight
    last = nn.Linear(prototypes.shape[1], len(prototypes), bias=False)
    return PlainDINO(encoder, nn.Sequential(*layers, Unit(), last))


def their_step(module: nn.Module, views: tuple[Tensor, ...], compiled: bool) -> Step:
    after = module.follow if isinstance(module, PlainDINO) else None
    return plain_step(module, lambda forward: forward(*views), views[0].device, compiled=compiled, after=after)


def compare(name: str, device: torch.device, *, tiny: bool, rounds: int, times: int, compiled: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    settings = {"mae": MAESettings(), "simclr": SimCLRSettings(), "dino": DINOSettings()}[name]
    sizes: dict[str, Any] = TINY if tiny else {}
    model = ViTSettings(width=768, depth=12, heads=12, patch=16, positions="sincos" if name == "mae" else "learned")
    if tiny:
        model = model.changed(width=64, depth=2, heads=2)
    objective = settings.build(model.build(), ()).to(device)
    row: dict[str, Any] = {}
    module = plain(name, objective, sizes).to(device) if there("timm", row) else None
    batch_size = 4 if tiny else BATCHES[name]
    px = [224] if name == "mae" else [224, 224] + ([LOCAL_PX] * NUM_LOCAL if name == "dino" else [])
    views = tuple(torch.randn(batch_size, 3, side, side, device=device) for side in px)
    ids = torch.arange(batch_size, device=device)
    modules = [objective] if module is None else [objective, module]
    counts = [sum(p.numel() for p in one.parameters() if p.requires_grad) for one in modules]
    assert max(counts) - min(counts) <= 2e-4 * counts[0], counts
    row |= {"batch_size": batch_size, "parameters": counts}
    batch = Batch(views=views, targets={}, ids=ids, keys=ids)
    makers = {"ours": lambda: loop_on(objective, batch, compiled, graph=device.type == "cuda").run_step}
    if module is not None:
        makers["plain"] = lambda: their_step(copy.deepcopy(module), views, False)
        if compiled:
            makers["plain, compiled"] = lambda: their_step(copy.deepcopy(module), views, True)
    row["errors"] = {}
    medians = in_turn(ready(makers, row["errors"], device), rounds, times, device)
    row |= {f"{who}, ms": round(1000 * median, 2) for who, median in medians.items()}
    others = medians.keys() - {"ours"} if "ours" in medians else ()
    return row | {f"ratio to {who}": round(medians[who] / medians["ours"], 3) for who in others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", nargs="+", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=6, help="steps of a round")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no row begins")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--out", type=Path)
    options, began = parser.parse_args(), time.monotonic()
    device, rows = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []
    for name in options.objectives:
        if time.monotonic() - began > options.seconds:
            break
        torch.compiler.reset()
        sizes = {"rounds": options.rounds, "times": options.times}
        found: dict[str, Any] = {"objective": name}
        with noted(found, "failed"):
            found |= compare(name, device, tiny=options.tiny, compiled=not options.eager, **sizes)
        rows.append(found)
        print(json.dumps(found), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")
    if not any("ours, ms" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
