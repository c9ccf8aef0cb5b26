"""ExportedPredictor: an .onnx file that `vitreous export` wrote, run by ONNX Runtime; without torch."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import Picture
from vitreous.errors import UserError, first_line
from vitreous.export.usage import Usage
from vitreous.prediction.outcomes import Outputs
from vitreous.prediction.predictor import Predictor

METADATA = "vitreous"  # the key under which a file carries its Usage
CERTIFICATE = ".certificate.json"  # follows the name of what it is about
BATCH_PIXELS = 8_000_000  # of all pictures of a batch: the graph keeps several copies of them as floats


class ExportedPredictor(Predictor):
    def __init__(self, path: Path, threads: int = 0) -> None:
        """`threads`: 0 for as many as there are cores."""
        _verify(path)
        self.path = path
        self.session = open_session(path, threads)
        self.usage = _usage(path, self.session)
        self.reading = self.usage.reading
        with_extent = len(self.session.get_inputs()) > 1
        self._fit = _fitting_session(self.usage, with_extent, threads) if self.usage.input == "tensors" else None

    @property
    def fingerprint(self) -> str:
        beside = self.path.with_name(self.path.name + ".data")  # the weights, of a large model
        return "+".join(sha256(file) for file in (self.path, beside) if file.is_file())

    def outputs(self, pictures: Sequence[Picture]) -> Outputs:
        if self._fit is None:
            return _by_size(self.session, pictures)
        return self.run(*_by_size(self._fit, pictures).values())

    def run(self, *inputs: NDArray[Any]) -> Outputs:
        """One pass through the file: a batch of what it takes in, in its order, and what it gives, by name."""
        return _run(self.session, *inputs)


def open_session(model: Path | bytes, threads: int = 0) -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("exported models run in ONNX Runtime: pip install 'vitreous[export]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors; they are raised, too
    name = "the graph" if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else name, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the runtime's own kinds have no common base
        reason = str(error).splitlines()[0]
        raise UserError(f"{name}: not read by ONNX Runtime ({reason})") from None


def _fitting_session(usage: Usage, with_extent: bool, threads: int) -> Any:
    """What such a file leaves to its user, as a graph of its own."""
    from onnx import TensorProto

    from vitreous.export.graph import Graph, Value
    from vitreous.export.pictures import write_extent, write_pictures

    graph, shape = Graph(), (3, *usage.fitting.size_px)
    values = {"tensors": Value(write_pictures(usage.fitting, graph, "pictures"), shape)}
    if with_extent:
        values["extent"] = Value(write_extent(usage.fitting, graph, "pictures"), (2,), TensorProto.INT64)
    model = graph.model([("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))], values)
    return open_session(model.SerializeToString(), threads)


def _by_size(session: Any, pictures: Sequence[Picture]) -> Outputs:
    """Those of one size in one batch, since a batch has one size, as far as memory allows; in the order given."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, picture in enumerate(pictures):
        groups.setdefault(picture.shape, []).append(place)
    found: dict[str, dict[int, NDArray[Any]]] = {}
    for (height, width, _), places in groups.items():
        size = max(1, BATCH_PIXELS // (height * width))
        for start in range(0, len(places), size):
            some = places[start : start + size]
            for name, rows in _run(session, np.stack([pictures[place] for place in some])).items():
                found.setdefault(name, {}).update(zip(some, rows, strict=True))
    return {name: np.stack([rows[place] for place in range(len(pictures))]) for name, rows in found.items()}


def _run(session: Any, *inputs: NDArray[Any]) -> Outputs:
    names = [each.name for each in session.get_inputs()]
    try:
        given = session.run(None, dict(zip(names, inputs, strict=True)))
    except Exception as error:  # the runtime's own kinds have no common base
        if "alloc" in str(error):
            raise MemoryError(f"ONNX Runtime: {first_line(error)}") from None
        raise
    return {output.name: array for output, array in zip(session.get_outputs(), given, strict=True)}


def _usage(path: Path, session: Any) -> Usage:
    text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if text is None:
        raise UserError(f"{path}: not written by `vitreous export`, so its classes are not known")
    return Usage.read(json.loads(text), where=str(path))


def certificate_path(path: Path) -> Path:
    return path.with_name(path.name + CERTIFICATE)


def _verify(path: Path) -> None:
    """Against the certificate, where it still lies beside the file."""
    certificate = certificate_path(path)
    if not certificate.is_file():
        return
    try:
        result = json.loads(certificate.read_text())["result"]
        expected = {path: result["sha256"]} | {
            path.with_name(name): one for name, one in result.get("beside", {}).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{certificate}: damaged (not a certificate); export again, or remove it") from None
    for file, wanted in expected.items():
        if not file.is_file():
            raise UserError(f"{file}: missing; it holds the weights of {path.name}")
        if sha256(file) != wanted:
            raise UserError(f"{file}: damaged (its sha256 is not the one in {certificate.name}); export it again")


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
