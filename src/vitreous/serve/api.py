"""The endpoints."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.errors import UserError
from vitreous.prediction.naming import AS_THEY_ARE, TEMPLATES, check, listed
from vitreous.serve import schemas
from vitreous.serve.body import MOST_TEXTS, Gone, Refused
from vitreous.serve.files import PageFile
from vitreous.serve.service import Service
from vitreous.serve.supervisor import ModelProcess, Reply

Model = Annotated[str | None, Query(description="a name from /v1/model; the first model by default")]
Top = Annotated[int, Query(ge=1, le=1000, description="how many of the likeliest classes")]
Coverage = Annotated[float | None, Query(gt=0, lt=1, description="also give a set that holds the right class so often")]
Abstain = Annotated[float | None, Query(ge=0, le=1, description="say null where no class is at least so likely")]
Polygons = Annotated[bool, Query(description="also give every region as a polygon")]
Score = Annotated[float | None, Query(ge=0, le=1, description="the least of an object; by default the threshold")]
QueryLooks = Annotated[bool, Query(description="also tell where in the picture the model looked for each object")]
Classes = Annotated[list[str], Query(description="names of classes, with commas between them; or given several times")]
Templates = Annotated[str | None, Query(description="sentences with {} for the name, with ; between them; or none")]
Places = Annotated[bool, Query(description="also tell how alike each place of the picture is to each name")]
Num = Annotated[int, Query(ge=1, le=100, description="how many")]
PATIENCE_S = 15.0  # for a model that starts, or an index that is being made
LEFT = 499  # nobody reads it; the metrics count it


async def _until(is_so: Callable[[], bool]) -> bool:
    """Waits for what will soon be so, in place of an answer that says to ask again; whether it came to be."""
    ends = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    return is_so()


def prediction_options(model: ModelProcess, top: int, coverage: float | None, abstain: float | None) -> dict[str, Any]:
    assert model.description is not None
    known = model.description["coverages"]
    if coverage is not None and coverage not in known:
        has = f"of {', '.join(f'{each:g}' for each in known)}" if known else "of none: calibrate it first"
        raise Refused(422, f"this model knows prediction sets {has}")
    return {"top": top, "coverage": coverage, "abstain": abstain}


def naming_options(classes: list[str], templates: str | None) -> dict[str, Any]:
    try:
        names = [name for part in classes for name in listed(part, ",")]
        sentences = TEMPLATES if templates is None else AS_THEY_ARE if templates == "none" else listed(templates, ";")
        check(names, sentences, least=1)
    except UserError as error:
        raise Refused(422, str(error)) from None
    if len(names) > MOST_TEXTS:
        raise Refused(
            422, f"{len(names)} classes: up to {MOST_TEXTS}; more make a classifier (vitreous convert --classes)"
        )
    return {"classes": names, "templates": sentences}


def embeddings(reply: Reply | Refused, width: int) -> list[dict[str, Any]]:
    """Of a picture, or of the texts that went together."""
    if isinstance(reply, Refused):
        return [{"error": reply.reason}]
    return [{"embedding": row} for row in np.frombuffer(reply.blob, np.float32).reshape(-1, width).tolist()]


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
    _add_words(app, service)
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


def _add_words(app: FastAPI, service: Service) -> None:
    most = service.settings.pictures_per_request

    @app.post(
        "/v1/zero-shot",
        response_model=schemas.Namings,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most),
        summary="How likely classes are that are given by their names alone.",
    )
    async def zero_shot(
        request: Request, classes: Classes, model: Model = None, templates: Templates = None, places: Places = False
    ) -> Response:
        asked = service.able(model, "zero-shot")
        options = naming_options(classes, templates) | {"places": places}
        replies = await service.ask(request, asked, "zero-shot", most, options)
        return JSONResponse({"model": asked.name, "results": rows(replies, lambda reply: reply.result)})

    @app.post(
        "/v1/search",
        response_model=schemas.Found,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(1, texts=1),
        summary="The pictures of the served index that are most like a text, or a picture.",
    )
    async def search(request: Request, model: Model = None, num: Num = 12) -> Response:
        asked = service.able(model, "search")
        reply = await service.one(request, asked, "search", {"num": num})
        assert asked.description is not None
        return JSONResponse({"model": asked.name, "total": asked.description["searched"], "results": reply.result})

    @app.post(
        "/v1/embed",
        response_model=schemas.Embeddings,
        responses=schemas.errors(*schemas.ASKING),
        openapi_extra=schemas.body(most, texts=MOST_TEXTS),
        summary="The pooled features of the pictures; or of texts, to be compared with those of pictures.",
    )
    async def embed(request: Request, model: Model = None) -> Response:
        asked = service.able(model, "embed")
        replies = await service.ask(request, asked, "embed", most)
        assert asked.description is not None
        width = asked.description["width"]
        results = [row for reply in replies for row in embeddings(reply, width)]
        return JSONResponse({"model": asked.name, "width": width, "results": results})


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
