"""The endpoints."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.serve import schemas
from vitreous.serve.body import Bodies, Gone, Refused, pictures_in
from vitreous.serve.files import PageFile
from vitreous.serve.metrics import Metrics
from vitreous.serve.settings import ServeSettings
from vitreous.serve.supervisor import ModelProcess, Reply

Model = Annotated[str | None, Query(description="a name from /v1/model; the first model by default")]
Top = Annotated[int, Query(ge=1, le=1000, description="how many of the likeliest classes")]
Coverage = Annotated[float | None, Query(gt=0, lt=1, description="also give a set that holds the right class so often")]
Abstain = Annotated[float | None, Query(ge=0, le=1, description="say null where no class is at least so likely")]
Polygons = Annotated[bool, Query(description="also give every region as a polygon")]
Score = Annotated[float | None, Query(ge=0, le=1, description="the least of an object; by default the threshold")]
QueryLooks = Annotated[bool, Query(description="also tell where in the picture the model looked for each object")]
Num = Annotated[int, Query(ge=1, le=100, description="how many")]
PATIENCE_S = 15.0  # for a model that starts, or an index that is being made
LEFT = 499  # nobody reads it; the metrics count it


class Service:
    """What the endpoints share."""

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
            yield "vitreous_queue_places", "Pictures that may be admitted at once.", name, model.queue
            yield "vitreous_max_batch_pictures", "Pictures that may go through together.", name, model.max_batch
            yield "vitreous_ready", "Whether the model's process answers.", name, float(model.is_ready)
            yield "vitreous_process_starts", "How often the model's process was started.", name, model.num_starts

    def model(self, name: str | None) -> ModelProcess:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Refused(404, f"there is no such model; there are: {', '.join(self.models)}")
        return self.models[name]

    def able(self, name: str | None, kind: str) -> ModelProcess:
        """The model, if it could answer now. Nothing of the request's body has been read yet."""
        model = self.model(name)
        model.check_room()
        assert model.description is not None
        if kind not in model.description["can"]:
            closed = model.description["closed"] if kind == "attention" else None
            why = closed or f"it can {', '.join(model.description['can'])}"
            raise Refused(404, f"the model {model.name} cannot {kind}: {why}")
        return model

    async def ask(
        self, request: Request, model: ModelProcess, kind: str, num: int, options: dict[str, Any] | None = None
    ) -> list[Reply | Refused]:
        """Reads up to `num` pictures and asks the model about them; a client that leaves takes its question back."""
        began = time.monotonic()
        self.bodies.check(request)
        with self.bodies.counted() as body:
            read = await body.read(request)
            pictures = pictures_in(read, request.headers.get("content-type", ""), num)
            del read
            asked = asyncio.ensure_future(model.ask(kind, pictures, options or {}))
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


async def _until(is_so: Callable[[], bool]) -> bool:
    """Waits for what will soon be so, in place of an answer that says to ask again; whether it came to be."""
    ends = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    return is_so()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def prediction_options(model: ModelProcess, top: int, coverage: float | None, abstain: float | None) -> dict[str, Any]:
    assert model.description is not None
    known = model.description["coverages"]
    if coverage is not None and coverage not in known:
        has = f"of {', '.join(f'{each:g}' for each in known)}" if known else "of none: calibrate it first"
        raise Refused(422, f"this model knows prediction sets {has}")
    return {"top": top, "coverage": coverage, "abstain": abstain}


def rows(replies: list[Reply | Refused], row: Any) -> list[dict[str, Any]]:
    return [{"error": reply.reason} if isinstance(reply, Refused) else row(reply) for reply in replies]


# ---- the app


def build_app(service: Service, files: dict[str, PageFile]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for model in service.models.values():
            await model.start()
        yield
        await asyncio.gather(*(model.stop() for model in service.models.values()))

    app = FastAPI(
        title="Vitreous",
        version=__version__,
        description="A Vision Transformer over HTTP.",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    _add_errors(app)
    _add_questions(app, service)
    _add_views_inside(app, service)
    _add_facts(app, service)
    _add_files(app, files)
    return app


def _error(status: int, reason: str, retry_s: int | None = None) -> JSONResponse:
    headers = {} if retry_s is None else {"retry-after": str(retry_s)}
    return JSONResponse({"error": reason}, status, headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _error(error.status, error.reason, error.retry_s)

    @app.exception_handler(Gone)
    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return _error(422, f"{first['loc'][-1]}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


def _add_questions(app: FastAPI, service: Service) -> None:
    most = service.settings.pictures_per_request

    @app.post(
        "/v1/predict",
        response_model=schemas.Predictions,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most),
        summary="What is in the pictures.",
    )
    async def predict(
        request: Request, model: Model = None, top: Top = 5, coverage: Coverage = None, abstain: Abstain = None
    ) -> Response:
        asked = service.able(model, "predict")
        options = prediction_options(asked, top, coverage, abstain)
        replies = await service.ask(request, asked, "predict", most, options)
        return JSONResponse({"model": asked.name, "results": rows(replies, lambda reply: reply.result)})

    @app.post(
        "/v1/segment",
        response_model=schemas.Segmentations,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most),
        summary="A class for every pixel of the pictures.",
    )
    async def segment(request: Request, model: Model = None, polygons: Polygons = False) -> Response:
        asked = service.able(model, "segment")
        replies = await service.ask(request, asked, "segment", most, {"polygons": polygons})
        return JSONResponse({"model": asked.name, "results": rows(replies, lambda reply: reply.result)})

    @app.post(
        "/v1/detect",
        response_model=schemas.Detections,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most),
        summary="The objects of the pictures, each with its box.",
    )
    async def detect(request: Request, model: Model = None, score: Score = None, looks: QueryLooks = False) -> Response:
        asked = service.able(model, "detect")
        replies = await service.ask(request, asked, "detect", most, {"score": score, "looks": looks})
        return JSONResponse({"model": asked.name, "results": rows(replies, lambda reply: reply.result)})

    @app.post(
        "/v1/embed",
        response_model=schemas.Embeddings,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most),
        summary="The pooled features of the pictures.",
    )
    async def embed(request: Request, model: Model = None) -> Response:
        asked = service.able(model, "embed")
        replies = await service.ask(request, asked, "embed", most)
        assert asked.description is not None
        results = rows(replies, lambda reply: {"embedding": np.frombuffer(reply.blob, np.float32).tolist()})
        return JSONResponse({"model": asked.name, "width": asked.description["width"], "results": results})


def _add_views_inside(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/attention",
        response_class=Response,
        responses={
            200: {"content": {"application/octet-stream": {}}, "description": "JSON and arrays: docs/SERVING.md"},
            **schemas.errors(*schemas.ASKING),
        },
        openapi_extra=schemas.body(None),
        summary="What every token of a picture looks at, in every layer and head, and the prediction.",
    )
    async def attention(
        request: Request, model: Model = None, top: Top = 5, coverage: Coverage = None, abstain: Abstain = None
    ) -> Response:
        asked = service.able(model, "attention")
        options = prediction_options(asked, top, coverage, abstain)
        reply = await service.one(request, asked, "attention", options)
        return Response(reply.blob, media_type="application/octet-stream")

    @app.post(
        "/v1/neighbours",
        response_model=schemas.Neighbours,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(None),
        summary="The training pictures nearest to a picture.",
    )
    async def neighbours(request: Request, model: Model = None, num: Num = 8) -> Response:
        asked = service.able(model, "embed")
        if asked.index.why is not None:
            raise Refused(404, asked.index.why)
        reply = await service.one(request, asked, "embed")
        await _until(lambda: asked.index.is_useful)
        found = asked.index.nearest(np.frombuffer(reply.blob, np.float32), num)
        return JSONResponse(
            {
                "model": asked.name,
                "indexed": len(asked.index.rows),
                "total": asked.index.total,
                "neighbours": [asdict(each) for each in found],
            }
        )


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", response_model=schemas.Models, responses=schemas.errors(503), summary="The models served.")
    async def model() -> Response:
        if not await _until(lambda: all(each.description is not None for each in service.models.values())):
            raise Refused(503, "the model is starting; try again", retry_s=2)
        found = [
            {"name": name, **(each.description or {}), "neighbours": each.index.about()}
            for name, each in service.models.items()
        ]
        return JSONResponse({"models": found})

    @app.get("/v1/examples", response_model=schemas.Examples, responses=schemas.errors(404), summary="Pictures to try.")
    async def examples(model: Model = None) -> Response:
        found = service.model(model).examples
        return JSONResponse({"examples": [{"label": label, "picture": picture} for label, picture in found]})

    @app.get("/healthz", response_model=schemas.State, responses=schemas.errors(503), summary="Whether all is alive.")
    async def healthz() -> Response:
        lost = [name for name, each in service.models.items() if each.has_given_up]
        if lost and not service.is_stopping:
            raise Refused(503, f"the process of {', '.join(lost)} cannot be started", retry_s=30)
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", response_model=schemas.State, responses=schemas.errors(503), summary="Whether models answer.")
    async def readyz() -> Response:
        if service.is_stopping or not all(each.is_ready for each in service.models.values()):
            raise Refused(503, "not ready", retry_s=1)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=Response, summary="For Prometheus.")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_files(app: FastAPI, files: dict[str, PageFile]) -> None:
    for path, file in files.items():

        async def page(request: Request, file: PageFile = file) -> Response:
            headers = {"etag": file.etag, "cache-control": "no-cache"}
            if request.headers.get("if-none-match") == file.etag:
                return Response(status_code=304, headers=headers)
            return Response(file.content, media_type=file.type, headers=headers)

        app.add_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
