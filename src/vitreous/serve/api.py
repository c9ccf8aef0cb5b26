"""The HTTP endpoints."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.errors import UserError, did_you_mean, shown
from vitreous.prediction.naming import AS_THEY_ARE, TEMPLATES, check, listed
from vitreous.serve import schemas
from vitreous.serve.body import MOST_TEXTS, Gone, Refused
from vitreous.serve.files import PageFile
from vitreous.serve.service import Service
from vitreous.serve.supervisor import ModelProcess, Reply

Model = Annotated[str | None, Query(description="a name from /v1/model; default: the first model")]
Top = Annotated[int, Query(ge=1, le=1000, description="how many of the most likely classes to return")]
Coverage = Annotated[
    float | None, Query(gt=0, lt=1, description="also return a set that contains the right class this often")
]
Abstain = Annotated[
    float | None, Query(ge=0, le=1, description="return null as the label if no class is at least this likely")
]
Polygons = Annotated[bool, Query(description="also return every region as a polygon")]
Score = Annotated[
    float | None, Query(ge=0, le=1, description="the lowest score of an object; default: the model's threshold")
]
QueryLooks = Annotated[bool, Query(description="also return where in the picture the model looked for each object")]
Classes = Annotated[list[str], Query(description="names of classes, separated by commas; may be repeated")]
Templates = Annotated[
    str | None, Query(description="sentences with {} in place of the name, separated by semicolons; or none")
]
Places = Annotated[bool, Query(description="also return how similar each part of the picture is to each name")]
Num = Annotated[int, Query(ge=1, le=100, description="how many pictures to return")]
PATIENCE_S = 15.0  # to wait for a model that is starting, or an index that is being built
MOST_SENTENCES = 1000  # of a request: all names in all templates; each goes through the text tower
CLIENT_LEFT = 499  # a status that nobody reads, but the metrics count


async def _until(is_so: Callable[[], bool]) -> bool:
    """Wait a while for a condition, rather than tell the client to try again. Returns whether it came true."""
    ends = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    return is_so()


def prediction_options(model: ModelProcess, top: int, coverage: float | None, abstain: float | None) -> dict[str, Any]:
    assert model.description is not None
    known = model.description["coverages"]
    if coverage is not None and coverage not in known:
        if not known:
            raise Refused(422, "this model has no prediction sets: calibrate it first")
        raise Refused(422, f"this model has prediction sets for coverage {', '.join(f'{each:g}' for each in known)}")
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
            422,
            f"{len(names)} classes, but at most {MOST_TEXTS} are allowed: make a classifier of more "
            "(vitreous convert --classes)",
        )
    if len(names) * len(sentences) > MOST_SENTENCES:
        raise Refused(
            422,
            f"{len(names)} classes in {len(sentences)} templates, but at most {MOST_SENTENCES} sentences are allowed",
        )
    return {"classes": names, "templates": sentences}


def check_options(request: Request) -> None:
    """Refuse an option that the endpoint does not have, which FastAPI would ignore."""
    route = request.scope["route"]
    known = [field.alias for field in route.dependant.query_params]
    wrong = next((name for name in request.query_params if name not in known), None)
    if wrong is not None and known:  # where there are no options, as at /metrics, none can be mistyped
        hint = did_you_mean(wrong, known) or f" It has {', '.join(known)}"
        raise Refused(400, f"{route.path} has no option {shown(wrong)}.{hint}")


def embeddings(reply: Reply | Refused, width: int) -> list[dict[str, Any]]:
    """The embedding of a picture, or those of the texts that were sent together."""
    if isinstance(reply, Refused):
        return [{"error": reply.reason}]
    return [{"embedding": row} for row in np.frombuffer(reply.blob, np.float32).reshape(-1, width).tolist()]


def asking(response: type[BaseModel], num: int, summary: str, texts: int = 0) -> dict[str, Any]:
    """FastAPI's arguments for an endpoint that takes up to `num` pictures, or up to `texts` texts."""
    return {
        "response_model": response,
        "responses": schemas.errors(*schemas.ASKING),
        "openapi_extra": schemas.body(num, texts),
        "summary": summary,
    }


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
        docs_url=None,  # these pages load scripts from other sites
        redoc_url=None,
        dependencies=[Depends(check_options)],
    )
    _add_errors(app)
    _add_questions(app, service)
    _add_embeddings(app, service)
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
        return Response(status_code=CLIENT_LEFT)

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

    @app.post("/v1/predict", **asking(schemas.Predictions, most, "Classify pictures."))
    async def predict(
        request: Request, model: Model = None, top: Top = 5, coverage: Coverage = None, abstain: Abstain = None
    ) -> Response:
        asked = service.able(model, "predict")
        return await answered(request, asked, "predict", prediction_options(asked, top, coverage, abstain))

    @app.post("/v1/segment", **asking(schemas.Segmentations, most, "Assign a class to every pixel of pictures."))
    async def segment(request: Request, model: Model = None, polygons: Polygons = False) -> Response:
        return await answered(request, service.able(model, "segment"), "segment", {"polygons": polygons})

    @app.post("/v1/detect", **asking(schemas.Detections, most, "Find the objects in pictures, each with its box."))
    async def detect(request: Request, model: Model = None, score: Score = None, looks: QueryLooks = False) -> Response:
        return await answered(request, service.able(model, "detect"), "detect", {"score": score, "looks": looks})

    @app.post("/v1/zero-shot", **asking(schemas.Namings, most, "Classify pictures by the names of classes alone."))
    async def zero_shot(
        request: Request, classes: Classes, model: Model = None, templates: Templates = None, places: Places = False
    ) -> Response:
        asked = service.able(model, "zero-shot")
        return await answered(request, asked, "zero-shot", naming_options(classes, templates) | {"places": places})

    async def answered(request: Request, asked: ModelProcess, kind: str, options: dict[str, Any]) -> Response:
        """One result per picture, in the order given; an error for each that could not be read."""
        replies = await service.ask(request, asked, kind, most, options)
        found = [{"error": reply.reason} if isinstance(reply, Refused) else reply.result for reply in replies]
        return JSONResponse({"model": asked.name, "results": found})


def _add_embeddings(app: FastAPI, service: Service) -> None:
    most = service.settings.pictures_per_request

    @app.post(
        "/v1/search",
        **asking(schemas.Found, 1, "Search the served index for the pictures most like a text or a picture.", texts=1),
    )
    async def search(request: Request, model: Model = None, num: Num = 12) -> Response:
        asked = service.able(model, "search")
        reply = await service.one(request, asked, "search", {"num": num})
        assert asked.description is not None
        return JSONResponse({"model": asked.name, "total": asked.description["searched"], "results": reply.result})

    @app.post(
        "/v1/embed",
        **asking(schemas.Embeddings, most, "Embed pictures, or texts to compare them with.", texts=MOST_TEXTS),
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
        openapi_extra=schemas.body(1),
        summary="The attention of every layer and head on a picture, and the prediction.",
    )
    async def attention(
        request: Request, model: Model = None, top: Top = 5, coverage: Coverage = None, abstain: Abstain = None
    ) -> Response:
        asked = service.able(model, "attention")
        options = prediction_options(asked, top, coverage, abstain)
        reply = await service.one(request, asked, "attention", options)
        return Response(reply.blob, media_type="application/octet-stream")

    @app.post("/v1/neighbours", **asking(schemas.Neighbours, 1, "Find the training pictures nearest to a picture."))
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
    @app.get(
        "/v1/model", response_model=schemas.Models, responses=schemas.errors(503), summary="List the served models."
    )
    async def model() -> Response:
        if not await _until(lambda: all(each.description is not None for each in service.models.values())):
            raise Refused(503, "the model is starting; try again", retry_s=2)
        found = [
            {"name": name, **(each.description or {}), "neighbours": each.index.about()}
            for name, each in service.models.items()
        ]
        return JSONResponse({"models": found})

    @app.get(
        "/v1/examples", response_model=schemas.Examples, responses=schemas.errors(400, 404), summary="Pictures to try."
    )
    async def examples(model: Model = None) -> Response:
        found = service.model(model).examples
        return JSONResponse({"examples": [{"label": label, "picture": picture} for label, picture in found]})

    @app.get("/healthz", response_model=schemas.State, responses=schemas.errors(503), summary="Is the service alive?")
    async def healthz() -> Response:
        lost = [name for name, each in service.models.items() if each.has_given_up]
        if lost and not service.is_stopping:
            raise Refused(503, f"the process of {', '.join(lost)} could not be started", retry_s=30)
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", response_model=schemas.State, responses=schemas.errors(503), summary="Are all models ready?")
    async def readyz() -> Response:
        if service.is_stopping or not all(each.is_ready for each in service.models.values()):
            raise Refused(503, "not ready", retry_s=1)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=Response, summary="Metrics for Prometheus.")
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
