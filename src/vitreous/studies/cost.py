"""Pictures per second and the largest batch that fits, against the picture size (paper, appendix D.5, Figure 12)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure

from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.models.flops import flops
from vitreous.studies.figures import lines_figure
from vitreous.studies.grid import Cell, Grid, Row
from vitreous.studies.models import patch_for, study_model
from vitreous.studies.study import Study
from vitreous.training.devices import World, autocast


@dataclass(frozen=True, kw_only=True)
class Cost(Study):
    """Nothing is trained and no data is read: random pictures cost as much as real ones."""

    name: ClassVar[str] = "cost"
    columns: ClassVar[tuple[str, ...]] = ("model", "px", "gflop", "pictures_s", "batch", "largest_training_batch")
    unused: ClassVar[tuple[str, ...]] = (
        *("data", "seeds", "steps", "batch_size", "rate", "weight_decay", "label_smoothing"),
        *("augment", "val_fraction", "compile"),
    )

    models: tuple[str, ...] = ("vit-s", "vit-l", "hybrid-l", "resnet-l")  # also vit_b16, bit_r50x1 ...
    sizes_px: tuple[int, ...] = (32, 64, 96, 128)  # multiples of the patch, which stays as at picture_px
    batches: tuple[int, ...] = (64, 256, 1024)  # to measure; the fastest counts
    seconds: float = 2.0  # of measurement for each
    most_batch: int = 65536  # where the search for the largest batch stops

    @classmethod
    def quick_changes(cls) -> dict[str, Any]:
        return {"models": ("vit-t", "resnet-t"), "sizes_px": (28, 56), "batches": (16, 64), "seconds": 0.3, "seeds": 1}

    def run(self, grid: Grid) -> None:
        world = World.join(self.device)
        cells = []
        for name in self.models:
            for px in self.sizes_px:
                facts = {**self.model(name).facts, "px": px, "device": world.device.type}
                cells.append(Cell(name=f"{name}-{px}px", facts=facts, measure=self._measuring(name, px, world.device)))
        grid.run(cells)

    def _measuring(self, name: str, px: int, device: torch.device) -> Callable[[Path], dict[str, Any]]:
        def measure(_: Path) -> dict[str, Any]:
            patch = self.patch or patch_for(self.picture_px)
            encoder = study_model(name, px, patch).settings.build().to(device)
            speeds = {batch: self._speed(encoder.eval(), batch, device) for batch in self.batches}
            best = max(speeds, key=lambda batch: speeds[batch])
            if not speeds[best]:
                raise UserError(f"{name} at {px} px: none of the batches {self.batches} fits into memory")
            found = {"gflop": round(flops(encoder) / 1e9, 4), "pictures_s": round(speeds[best], 1), "batch": best}
            if device.type == "cuda":
                found["largest_training_batch"] = self._largest(encoder.train(), device)
            return found

        return measure

    @torch.no_grad()
    def _speed(self, encoder: Encoder, batch: int, device: torch.device) -> float:
        """Pictures per second of the forward pass; 0 if the batch does not fit."""
        try:
            images = torch.randn(batch, 3, *encoder.picture_px, device=device)
            done, began = 0, 0.0
            with autocast(device, self.precision):
                for _ in range(3):  # warm-up
                    encoder(images)
                _wait(device)
                began = time.perf_counter()
                while time.perf_counter() - began < self.seconds:
                    encoder(images)
                    _wait(device)
                    done += batch
            return done / (time.perf_counter() - began)
        except torch.OutOfMemoryError:
            return 0.0

    def _largest(self, encoder: Encoder, device: torch.device) -> int:
        """The largest batch whose forward and backward pass fit, within a sixteenth."""
        fits, fails = 0, self.most_batch + 1
        trial = 16
        while fits + max(1, fits // 16) < fails and trial <= self.most_batch:
            if self._trains(encoder, trial, device):
                fits, trial = trial, 2 * trial if fails > self.most_batch else (trial + fails) // 2
            else:
                fails, trial = trial, (fits + trial) // 2
        return fits

    def _trains(self, encoder: Encoder, batch: int, device: torch.device) -> bool:
        try:
            with autocast(device, self.precision):
                pooled = encoder(torch.randn(batch, 3, *encoder.picture_px, device=device)).pooled
            pooled.float().mean().backward()
            _wait(device)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            encoder.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()

    def table(self, rows: Sequence[Row]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        lines = [tuple(str(row.get(name, "-")) for name in self.columns) for row in rows if "failed" not in row]
        return lines, self.columns

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        side = "side of the pictures (pixels)"
        device = rows[0]["device"] if rows else "cpu"
        title = f"Inference on the {'GPU' if device == 'cuda' else 'CPU'}"
        drawn = {
            "speed": lines_figure(
                rows, "px", "model", "pictures_s", title=title, labels=(side, "pictures per second"), log_y=True
            )
        }
        if any("largest_training_batch" in row for row in rows):
            words = (side, "largest batch in training")
            drawn["batch"] = lines_figure(
                rows, "px", "model", "largest_training_batch", title="", labels=words, log_y=True
            )
        return drawn


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
