"""TorchServed: a model whose weights we can read, ours or another library's, which can also be looked into."""

import base64
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous import platforms, settings
from vitreous.data.images import Picture
from vitreous.errors import UserError
from vitreous.inspection.positions import are_learned, position_similarity
from vitreous.inspection.queries import has_looks, query_looks
from vitreous.models.base import Encoder
from vitreous.nn.graphed import PLAIN_CALLS, Graphed
from vitreous.nn.half import half_where_native
from vitreous.prediction.box_outcomes import BoxOutcome, QueryLooks, canvas_on_picture
from vitreous.prediction.embedder import embedding
from vitreous.prediction.outcomes import Outcome, outcomes, views
from vitreous.prediction.reading import Reading
from vitreous.prediction.torch_predictor import TorchPredictor, as_arrays
from vitreous.search.index import Index
from vitreous.serve.answers import Options, as_json
from vitreous.serve.gallery import as_data_url
from vitreous.serve.inside import described_layout, looked_at, packed, quantised
from vitreous.serve.searched import Searched
from vitreous.serve.served import Served, described, endpoint
from vitreous.serve.words import Words
from vitreous.tasks.classify import Classify
from vitreous.tasks.image_text import ImageText
from vitreous.tasks.predictions import Prediction
from vitreous.weights.describe import describe
from vitreous.weights.fingerprint import fingerprint
from vitreous.weights.trained import Trained

MAX_POSITIONS = 1024  # patches in the table of similarities
CPU_LANES = 2
WITH_QUERIES = ("detect", "instances")  # kinds of tasks with one query per object


class Prepared(NamedTuple):
    pixels: Tensor  # (3, h, w) uint8: the part of a picture that the model sees, at its size
    size: tuple[int, int]  # height and width of the original picture
    windows: Tensor | None = None  # (n, 3, h, w) uint8, if the model sees a picture through several windows


class TorchServed(Served):
    def __init__(self, where: str, device: str, threads: int | None, index: Index | None = None) -> None:
        """`index`: pictures that can be searched; its embeddings were made by this model."""
        trained = Trained.load(where)
        self.card, self.threads = trained.card, threads or os.cpu_count() or 1
        self.device = platforms.device_named(device)
        if self.device.type == "cpu":
            # Large batches gain little on a CPU. Three places per lane keep both lanes busy; a longer queue would only
            # make everyone wait longer.
            self.lanes, self.max_batch, self.queue = min(CPU_LANES, self.threads), 4, 6
        self.predictor = TorchPredictor(trained, self.device) if self.card.predicts else None
        self.towers, self.words = self._two_towers(trained)
        if self.towers is not None:
            encoder = self.towers.encoder
        else:
            encoder = trained.encoder() if self.predictor is None else self.predictor.task.encoder
        self.encoder = encoder.to(self.device).eval()
        self._pooled = Graphed(self.towers or self.encoder, self._embedded)
        self.searched = None if index is None else Searched(index, self._fingerprint())

    def _two_towers(self, trained: Trained) -> tuple[ImageText | None, Words | None]:
        """A model of pictures and words, and its text tower if there is a tokenizer."""
        if self.card.task is None or self.card.predicts:
            return None, None
        towers = trained.task().to(self.device)
        assert isinstance(towers, ImageText)
        try:
            return towers, Words(towers, trained.tokenizer(), self.device)
        except UserError:  # the weights came without a tokenizer: pictures can still be compared
            return towers, None

    def _fingerprint(self) -> str:
        return fingerprint(self.towers or self.encoder, settings.to_json(self.card.preprocessing))

    def begin_decoder(self) -> None:
        torch.set_num_threads(1)

    def take_cores(self, lanes: int) -> None:
        # This applies to the calling thread alone: decoders and other lanes keep their own numbers of threads.
        num = max(1, self.threads // lanes)
        if torch.get_num_threads() != num:
            torch.set_num_threads(num)

    def warm_up(self) -> None:
        """On a GPU, record passes over batch sizes of 1, 2, 4 ...: a batch of another size is filled up to the next."""
        self.take_cores(1)
        size = self.card.preprocessing.size_px
        empty = Prepared(torch.zeros(3, *size, dtype=torch.uint8), size)
        self.embed([empty])
        if self.device.type == "cuda" and self.predictor is not None:
            for power in range(self.max_batch.bit_length()):
                for _ in range(PLAIN_CALLS + 1):
                    self._predicted([empty] * min(2**power, self.max_batch))

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, torch.AcceleratorError)  # every later call to the GPU from this process would fail too

    # ---- pictures

    def prepare(self, picture: Picture) -> Prepared:
        resized, windows = self.card.preprocessing.resized, None
        if self.predictor is not None and self.predictor.reading.windows is not None:
            windows = torch.stack([resized(view) for view in views(picture, self.predictor.reading)])
        return Prepared(resized(picture), (picture.shape[0], picture.shape[1]), windows)

    def _images(self, prepared: Sequence[Prepared]) -> Tensor:
        return self.card.preprocessing.normalised(_pixels(prepared).to(self.device))

    # ---- predictions

    @torch.inference_mode()
    def predict(self, prepared: Sequence[Prepared], *, looks: bool = False) -> list[Outcome]:
        assert self.predictor is not None
        task = self.predictor.task
        head: nn.Module = getattr(task, "head", task)
        if not (looks and has_looks(head) and self.predictor.reading.kind in WITH_QUERIES):
            return self._outcomes(self._predicted(prepared), prepared)
        images, extent, canvas = self._images(prepared), self._extent(prepared), self.card.preprocessing.size_px
        extent = None if extent is None else extent.to(self.device)
        prediction, maps = query_looks(task, canvas, lambda: task.predict(images, extent))
        levels = quantised(maps.flatten(2))[1].view(maps.shape).numpy()
        return [
            _with_looks(outcome, each, self.predictor.reading)
            for outcome, each in zip(self._outcomes(prediction, prepared), levels, strict=True)
        ]

    def _predicted(self, prepared: Sequence[Prepared]) -> Prediction:
        assert self.predictor is not None
        return self.predictor.predict(_pixels(prepared, through_windows=True), self._extent(prepared))

    def _extent(self, prepared: Sequence[Prepared]) -> Tensor | None:
        if any(one.windows is not None for one in prepared):
            return None
        return self.card.preprocessing.extents([one.size for one in prepared])

    def _outcomes(self, prediction: Prediction, prepared: Sequence[Prepared]) -> list[Outcome]:
        assert self.predictor is not None
        return outcomes(as_arrays(prediction), self.predictor.reading, [one.size for one in prepared])

    @torch.inference_mode()
    def embed(self, prepared: Sequence[Prepared]) -> NDArray[np.float32]:
        """(B, D); for a model of pictures and words, normalised to length 1, to be compared with texts."""
        with half_where_native(self.device):
            return self._pooled(_pixels(prepared).to(self.device)).float().cpu().numpy()

    def _embedded(self, model: Encoder | ImageText, pixels: Tensor) -> Tensor:
        return embedding(model, self.card.preprocessing.normalised(pixels))

    # ---- words

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        assert self.words is not None
        return np.asarray(self.words.texts(texts).cpu().numpy())

    @torch.inference_mode()
    def zero_shot(self, prepared: Sequence[Prepared], options: Sequence[Options]) -> list[dict[str, Any]]:
        assert self.towers is not None and self.words is not None
        images = self._images(prepared)
        pictures, places = self.towers.embed_pictures(images), None
        if any(each["places"] for each in options):
            places = self.words.places(images)
        return [
            self.words.said(pictures[row], None if places is None or not each["places"] else places[row], each)
            for row, each in enumerate(options)
        ]

    def search(self, vector: NDArray[np.float32], num: int) -> list[dict[str, Any]]:
        assert self.searched is not None
        return self.searched.nearest(vector / max(float(np.linalg.norm(vector)), 1e-12), num)

    def examples(self, num: int) -> list[tuple[str, str]]:
        return [] if self.searched is None else self.searched.examples(num)

    # ---- attention

    @torch.inference_mode()
    def attention(self, prepared: Prepared, options: Options) -> bytes:
        features, header, arrays = looked_at(self.encoder, lambda: self.encoder(self._images([prepared])))
        task = None if self.predictor is None else self.predictor.task
        found = self._outcomes(task.of(features), [prepared])[0] if isinstance(task, Classify) else None
        picture_px = self.encoder.picture_px
        header |= {
            "prediction": None if found is None else as_json(found, options),
            "picture_px": list(picture_px),
            "seen": as_data_url(prepared.pixels.permute(1, 2, 0).numpy(), max(picture_px)),
        }
        return packed(header, arrays)

    # ---- description

    def describe(self) -> dict[str, Any]:
        module = self.towers or self.encoder if self.predictor is None else self.predictor.task
        model: dict[str, Any] = {
            "what": describe(self.card),
            **self._predictions(),
            "can": ["embed"],
            "parameters": sum(each.numel() for each in module.parameters()),
            "picture_px": list(self.card.preprocessing.size_px),
            "preprocessing": settings.to_json(self.card.preprocessing),
            "width": self._width(),
            "card": {**settings.to_json(self.card), "classes": len(self.card.classes)},
            "tokens": None,
            "positions": None,
            "closed": None,  # why it cannot be looked into
        }
        if self.predictor is not None:
            model["can"].append(endpoint(self.predictor.reading))
        if self.words is not None:
            model["can"].append("zero-shot")
        if self.searched is not None:
            model["can"].append("search")
            model["searched"] = len(self.searched)
        layers = self.encoder.attention_layers()
        if layers:
            model["can"].append("attention")
            heads = max(layer.heads for layer in layers)
            model["tokens"] = described_layout(layers[-1].looking) | {"layers": len(layers), "heads": heads}
            model["positions"] = self._positions()
        else:
            model["closed"] = "it has no attention over patches; the command vitreous inspect shows what it depends on"
        return model

    def _width(self) -> int:
        return self.encoder.width if self.towers is None else self.towers.settings.width or self.encoder.width

    def _predictions(self) -> dict[str, Any]:
        if self.predictor is not None:
            return described(self.predictor.reading)
        return {"task": None, "classes": [], "temperature": 1.0, "calibrated": False, "coverages": []}

    def _positions(self) -> dict[str, Any]:
        """Similarities from -1 to 1 as bytes from 0 to 255, or one line on why there are none."""
        try:
            similarity = position_similarity(self.encoder)
        except UserError as error:
            return {"similarity": None, "grid": None, "why": str(error)}
        grid = list(similarity.shape[:2])
        num = grid[0] * grid[1]
        if num > MAX_POSITIONS:
            return {"similarity": None, "grid": None, "why": f"the table of {num} x {num} places is too large to send"}
        levels = ((similarity.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        sent = base64.b64encode(levels.numpy().tobytes()).decode()
        return {"similarity": sent, "grid": grid, "learned": are_learned(self.encoder), "why": None}


def _pixels(prepared: Sequence[Prepared], through_windows: bool = False) -> Tensor:
    """(B, 3, h, w) uint8, on the CPU."""
    parts = [one.windows if through_windows and one.windows is not None else one.pixels[None] for one in prepared]
    return torch.cat(parts)


def _with_looks(outcome: Outcome, maps: NDArray[np.uint8], reading: Reading) -> Outcome:
    assert isinstance(outcome, BoxOutcome)
    return replace(outcome, looks=QueryLooks(maps, canvas_on_picture(outcome.size, reading)))
