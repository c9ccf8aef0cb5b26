"""What goes in and out, for OpenAPI. Answers are written as they are and not checked again on their way out."""

from typing import Any

from pydantic import BaseModel, Field


class Error(BaseModel):
    error: str = Field(description="one line: what is wrong, and what to do")


class Ranked(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1, description="calibrated by the model's temperature")
    threshold: float | None = Field(None, description="of several labels: from this probability on, a picture has it")


class Prediction(BaseModel):
    label: str | None = Field(None, description="the likeliest class; null: not sure (see `abstain`)")
    labels: list[Ranked] | None = Field(None, description="in place of `label` where a picture may have several")
    top: list[Ranked] | None = Field(None, description="the likeliest classes, best first")
    set: list[str] | None = Field(None, description="with `coverage`: classes that hold the right one so often")
    error: str | None = Field(None, description="in place of all else: why this picture cannot be read")


class Predictions(BaseModel):
    model: str
    results: list[Prediction] = Field(description="one per picture, in their order")


class Share(BaseModel):
    label: str
    share: float = Field(ge=0, le=1, description="of the picture's pixels")
    colour: tuple[int, int, int] = Field(description="red, green, blue: of the class in the mask")


class Segmentation(BaseModel):
    width: int | None = Field(None, description="of the picture as it was given, and of the mask")
    height: int | None = None
    classes: list[Share] | None = Field(None, description="that the picture has, the largest first")
    confidence: float | None = Field(None, description="calibrated, the mean over all pixels")
    mask: str | None = Field(None, description="a data URL: a PNG of class numbers, shown in a palette")
    polygons: list[dict[str, Any]] | None = Field(None, description="with `polygons`: class, area, outline, holes")
    error: str | None = Field(None, description="in place of all else: why this picture cannot be read")


class Segmentations(BaseModel):
    model: str
    results: list[Segmentation] = Field(description="one per picture, in their order")


class Mask(BaseModel):
    """As COCO writes it (RLE)."""

    size: tuple[int, int] = Field(description="height and width of the picture")
    counts: str = Field(description="lengths of runs outside and inside in turn, column after column, compressed")


class Object(BaseModel):
    label: str
    score: float = Field(ge=0, le=1, description="calibrated: the probability that this is right")
    box: tuple[float, float, float, float] = Field(description="x0, y0, x1, y1 in px of the picture as it was given")
    query: int = Field(description="the number of the query that says so")
    colour: tuple[int, int, int] = Field(description="red, green, blue: of the class")
    mask: Mask | None = Field(None, description="of a model that finds shapes: which pixels are the object's")
    looks: str | None = Field(None, description="with `looks`: a byte per cell, row by row, in base64; 255 is the most")


class Looks(BaseModel):
    rows: int
    columns: int
    box: tuple[float, float, float, float] = Field(description="where the cells lie, in px of the picture")


class Detection(BaseModel):
    width: int | None = Field(None, description="of the picture as it was given")
    height: int | None = None
    threshold: float | None = Field(None, description="the score that was chosen on validation pictures")
    objects: list[Object] | None = Field(None, description="the surest first")
    looks: Looks | None = Field(None, description="with `looks`, of a model that can be looked into")
    error: str | None = Field(None, description="in place of all else: why this picture cannot be read")


class Detections(BaseModel):
    model: str
    results: list[Detection] = Field(description="one per picture, in their order")


class Named(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1, description="among the names that were given")
    similarity: float = Field(description="cosine of picture and name")
    places: str | None = Field(None, description="with `places`: a byte per place, row by row, in base64")


class PlacesOf(BaseModel):
    rows: int
    columns: int
    least: float = Field(description="the cosine that a byte of 0 stands for")
    most: float = Field(description="and one of 255")


class Naming(BaseModel):
    label: str | None = Field(None, description="the likeliest name")
    top: list[Named] | None = Field(None, description="all names, the likeliest first")
    places: PlacesOf | None = Field(None, description="with `places`: of the part of the picture that the model sees")
    error: str | None = Field(None, description="in place of all else: why this picture cannot be read")


class Namings(BaseModel):
    model: str
    results: list[Naming] = Field(description="one per picture, in their order")


class Hit(BaseModel):
    name: str
    score: float = Field(description="cosine")
    picture: str | None = Field(description="a data URL; null of one that has moved since")


class Found(BaseModel):
    model: str
    total: int = Field(description="pictures looked among")
    results: list[Hit] = Field(description="the most alike first")


class Embedding(BaseModel):
    embedding: list[float] | None = Field(None, description="the encoder's pooled features")
    error: str | None = None


class Embeddings(BaseModel):
    model: str
    width: int
    results: list[Embedding]


class NeighbourOut(BaseModel):
    label: str
    similarity: float = Field(description="cosine of pooled features")
    picture: str = Field(description="a data URL")


class Neighbours(BaseModel):
    model: str
    indexed: int = Field(description="training pictures looked among so far")
    total: int = Field(description="and those that will be")
    neighbours: list[NeighbourOut]


class Example(BaseModel):
    label: str
    picture: str = Field(description="a data URL")


class Examples(BaseModel):
    examples: list[Example]


class Models(BaseModel):
    models: list[dict[str, Any]] = Field(description="the first is the default")


class State(BaseModel):
    status: str


def body(num: int | None, texts: int = 0) -> dict[str, Any]:
    """The request bodies of an endpoint that takes up to `num` pictures, or exactly one; or up to so many texts."""
    most = num or 1
    spoken = {"texts": {"type": "array", "minItems": 1, "maxItems": texts, "items": {"type": "string"}}}
    many = {"type": "array", "minItems": 1, "maxItems": most}
    plain = {"schema": {"type": "string", "format": "binary"}}
    form = {"type": "object", "required": ["pictures"]}
    text = {"type": "string", "contentEncoding": "base64", "format": "byte"}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {**form, "properties": {"pictures": {**many, "items": plain["schema"]}}}
                },
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"pictures": {**many, "items": text}} | (spoken if texts else {}),
                        "minProperties": 1,
                        "maxProperties": 1,
                        "additionalProperties": False,
                    }
                },
                "image/*": plain,
                "application/octet-stream": plain,
            },
        }
    }


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    meanings = {
        400: "malformed",
        401: "no token, or a wrong one",
        403: "from another site, or under another name",
        404: "no such model, or it has none of this",
        408: "the body came too slowly",
        413: "too large",
        415: "another kind of body",
        422: "no readable picture, or an option out of range",
        429: "too many pictures are waiting",
        503: "the model is starting",
    }
    return {code: {"model": Error, "description": meanings[code]} for code in (*codes, 401, 403)}


ASKING = (400, 404, 408, 413, 415, 422, 429, 503)
