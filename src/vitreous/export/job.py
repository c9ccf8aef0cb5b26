"""export: a model of ours or anybody's, as a file for other runtimes, with a certificate of what became of it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from vitreous.errors import UserError
from vitreous.export import certificate
from vitreous.export.certificate import Written
from vitreous.export.checks import NUM_PICTURES, check_pictures
from vitreous.export.program import takes_extent, trace
from vitreous.export.runtime import ExportedPredictor, certificate_path
from vitreous.export.usage import Input, Precision, Usage
from vitreous.prediction.outcomes import Outputs
from vitreous.prediction.reading import Reading
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.storage import atomic
from vitreous.weights import own
from vitreous.weights.trained import Trained

Format = Literal["onnx", "torch-export", "safetensors"]
ENDINGS: dict[Format, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ""}


@dataclass(frozen=True)
class Export:
    path: Path
    certificate: dict[str, Any]


def export(
    where: str | Path,
    to: Format = "onnx",
    *,
    precision: Precision = "fp32",
    input: Input | None = None,
    check: str | None = None,
    num_checks: int = NUM_PICTURES,
    picture_px: int | tuple[int, int] | None = None,
    out: str | Path | None = None,
) -> Export:
    """`input`: what goes in, by default pictures for onnx and tensors for the others, which take nothing else."""
    given: Input = input or ("pictures" if to == "onnx" else "tensors")
    if precision == "int8" and to != "onnx":
        raise UserError(f"int8 is written as onnx: --to {to} takes fp32 or --bf16")
    if given == "pictures" and to != "onnx":
        raise UserError(f"--to {to} takes tensors: preprocessing goes into an onnx file only")
    path = _target(str(where), to, precision, out)
    trained = Trained.load(where, picture_px=picture_px)
    eager = TorchPredictor(trained)
    checks = check_pictures(trained, check, num_checks)
    new = atomic.temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.clear(path)
        new.mkdir()
        written = _WRITERS[to](trained, precision, given, new / path.name)
        about = {"format": to, "precision": precision}
        facts = about | certificate.certify(trained, eager, written, checks)
        _put_in_place(new, path)
        atomic.write_json(facts, certificate_path(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); free some space or choose another") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Export(path, facts)


def _target(where: str, to: Format, precision: Precision, out: str | Path | None) -> Path:
    ending = ENDINGS[to]
    if out is None:
        stem = Path(where.rpartition(":")[2]).expanduser().resolve().stem
        return Path(stem + ("" if precision == "fp32" else f".{precision}") + (ending or ".model"))
    path = Path(out).expanduser()
    if ending and path.suffix != ending:
        raise UserError(f"{out}: the name of a file for {to} ends with {ending}")
    if path.is_dir() and (ending or not (path / own.MANIFEST).is_file()):
        raise UserError(f"{out}: it is a folder of something else; choose another place")
    return path


def _put_in_place(new: Path, path: Path) -> None:
    for made in new.iterdir():
        target = path.parent / made.name
        if target.is_dir():
            atomic.remove(target)
        made.rename(target)


# ---- one function a format


def _write_onnx(trained: Trained, precision: Precision, given: Input, path: Path) -> Written:
    try:
        from vitreous.export.onnx_file import write_onnx
    except ImportError:
        raise UserError("onnx files need onnx and onnxruntime: pip install 'vitreous[export]'") from None
    files = write_onnx(trained.task(), Usage.of(trained.card, given, precision), path)
    predictor = ExportedPredictor(path, torch.get_num_threads())
    return Written(files, given, precision, predictor.run)


def _write_program(trained: Trained, precision: Precision, given: Input, path: Path) -> Written:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    task, fitting = trained.task(), Reading.of(trained.card).fitting
    torch.export.save(trace(task, fitting.size_px, dtype, takes_extent(task, fitting)), path)
    program = torch.export.load(path).module()  # a file of our own, just written

    def run(*inputs: NDArray[Any]) -> Outputs:
        found = program(*map(torch.from_numpy, inputs))
        named = found if isinstance(found, dict) else {"logits": found}
        return {name: one.numpy() for name, one in named.items()}

    return Written([path], given, precision, run)


def _write_safetensors(trained: Trained, precision: Precision, given: Input, path: Path) -> Written:
    weights = {name: _stored(tensor, precision) for name, tensor in trained.weights.items()}
    replace(trained, weights=weights).save(path)
    again = TorchPredictor(Trained.load(path))

    def run(*inputs: NDArray[Any]) -> Outputs:
        return again.raw(*map(torch.from_numpy, inputs))

    return Written([path / "model.safetensors"], given, precision, run)


def _stored(tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if precision == "bf16" and tensor.is_floating_point() else tensor


_WRITERS: dict[Format, Callable[[Trained, Precision, Input, Path], Written]] = {
    "onnx": _write_onnx,
    "torch-export": _write_program,
    "safetensors": _write_safetensors,
}
