"""What the endpoints share: the models, and how requests reach them."""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from fastapi import Request

from vitreous.errors import shown
from vitreous.serve.body import Bodies, Gone, Refused, pictures_in, texts_in
from vitreous.serve.metrics import Metrics
from vitreous.serve.settings import ServeSettings
from vitreous.serve.supervisor import ModelProcess, Reply

OF_TEXTS = {"embed": "embed-texts", "search": "search-texts"}  # kind of request -> its kind when it brings texts


class Service:
    def __init__(self, settings: ServeSettings, names: Iterable[str]) -> None:
        self.settings = settings
        self.metrics = Metrics(self._gauges)
        self.bodies = Bodies(settings.max_body_bytes)
        self.models = {
            name: ModelProcess(name, where, settings, self._count_batch)
            for name, where in zip(names, settings.models, strict=True)
        }
        self.is_stopping = False

    def _count_batch(self, name: str, size: int) -> None:
        self.metrics.batches.labels(name).observe(size)

    def _gauges(self) -> Iterable[tuple[str, str, str, float]]:
        for name, model in self.models.items():
            yield "vitreous_queue_pictures", "Pictures admitted and not yet answered.", name, model.admitted
            yield "vitreous_queue_places", "Pictures that can be admitted at once.", name, model.queue
            yield "vitreous_max_batch_pictures", "Largest number of pictures per batch.", name, model.max_batch
            yield "vitreous_ready", "Whether the model's process is ready.", name, float(model.is_ready)
            yield "vitreous_process_starts", "Starts of the model's process.", name, model.num_starts

    def model(self, name: str | None) -> ModelProcess:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(404, f"there is no model {shown(name)}; the models are: {', '.join(self.models)}")
        return self.models[name]

    def able(self, name: str | None, kind: str) -> ModelProcess:
        """The model, if it can do this and has room. The request's body has not been read yet."""
        model = self.model(name)
        model.check_room()
        assert model.description is not None
        if kind not in model.description["can"]:
            closed = model.description["closed"] if kind == "attention" else None
            why = closed or f"it has {', '.join(f'/v1/{one}' for one in model.description['can'])}"
            raise Refused(404, f"the model {model.name} cannot {kind}: {why}")
        return model

    async def ask(
        self, request: Request, model: ModelProcess, kind: str, num: int, options: dict[str, Any] | None = None
    ) -> list[Reply | Refused]:
        """Read up to `num` pictures, or texts if this kind of request takes them, and return the model's replies. If
        the client disconnects, its pictures are dropped."""
        began = time.monotonic()
        self.bodies.check(request)
        with self.bodies.counted() as body:
            read = await body.read(request)
            kind, given = _given(read, request.headers.get("content-type", ""), model, kind, num)
            del read
            asked = asyncio.ensure_future(model.ask(kind, given, options or {}))
            left = asyncio.ensure_future(_left(request))
            try:
                await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    raise Gone
                replies = asked.result()
            finally:
                asked.cancel()
                left.cancel()
        first = replies[0]
        if isinstance(first, Refused) and all(isinstance(reply, Refused) for reply in replies):
            raise first
        self.metrics.latency.labels(request.url.path).observe(time.monotonic() - began)
        return replies

    async def one(
        self, request: Request, model: ModelProcess, kind: str, options: dict[str, Any] | None = None
    ) -> Reply:
        (reply,) = await self.ask(request, model, kind, 1, options)
        assert isinstance(reply, Reply)
        return reply


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _given(body: bytes, content_type: str, model: ModelProcess, kind: str, num: int) -> tuple[str, list[bytes]]:
    """The kind of request, and its inputs: each picture by itself, but all texts as one."""
    texts = texts_in(body, content_type) if kind in OF_TEXTS else None
    if texts is None:
        return kind, pictures_in(body, content_type, num)
    assert model.description is not None
    if "zero-shot" not in model.description["can"]:
        raise Refused(404, f"the model {model.name} cannot read texts: it has no text tower, or no tokenizer")
    if kind == "search" and len(texts) > 1:
        raise Refused(422, f"{len(texts)} texts: search for one text at a time")
    return OF_TEXTS[kind], [json.dumps(texts).encode()]
