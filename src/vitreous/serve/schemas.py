"""What requests and responses hold, for OpenAPI. Responses are not validated against these when they are sent."""

from typing import Any

from pydantic import BaseModel, Field


class Error(BaseModel):
    error: str = Field(description="one line: what is wrong, and what to do")


class Ranked(BaseModel):
    label: str
    probability: float = Field(ge=0, le=1, description="calibrated by the model's temperature")
    threshold: float | None = Field(
        None, description="for several labels per picture: it has those at least this likely"
    )


class Prediction(BaseModel):
    label: str | None = Field(None, description="the most likely class; null: not sure (see `abstain`)")
    labels: list[Ranked] | None = Field(None, description="instead of `label` if a picture may have several")
    top: list[Ranked] | None = Field(None, description="the most likely classes, best first")
    set: list[str] | None = Field(None, description="with `coverage`: classes that include the right one this often")
    error: str | None = Field(None, description="instead of everything else: why this picture could not be read")


class Predictions(BaseModel):
    model: str
    results: list[Prediction] = Field(description="one per picture, in the order given")


class Share(BaseModel):
    label: str
    share: float = Field(ge=0, le=1, description="share of the picture's pixels")
    colour: tuple[int, int, int] = Field(description="red, green, blue of the class in the mask")


class Segmentation(BaseModel):
    width: int | None = Field(None, description="of the original picture, and of the mask")
    height: int | None = None
    classes: list[Share] | None = Field(None, description="the classes in the picture, largest first")
    confidence: float | None = Field(None, description="calibrated; the mean over all pixels")
    mask: str | None = Field(None, description="a data URL: a PNG of class numbers, with a palette")
    polygons: list[dict[str, Any]] | None = Field(None, description="with `polygons`: class, area, outline, holes")
    error: str | None = Field(None, description="instead of everything else: why this picture could not be read")


class Segmentations(BaseModel):
    model: str
    results: list[Segmentation] = Field(description="one per picture, in the order given")


class Mask(BaseModel):
    """A mask as COCO's run-length encoding."""

    size: tuple[int, int] = Field(description="height and width of the picture")
    counts: str = Field(description="lengths of runs, alternately outside and inside, column by column, compressed")


class Object(BaseModel):
    label: str
    score: float = Field(ge=0, le=1, description="calibrated: the probability that this is right")
    box: tuple[float, float, float, float] = Field(description="x0, y0, x1, y1 in px of the original picture")
    query: int = Field(description="the number of the query that found it")
    colour: tuple[int, int, int] = Field(description="red, green, blue of the class")
    mask: Mask | None = Field(None, description="the object's pixels, if the model finds shapes")
    looks: str | None = Field(
        None, description="with `looks`: one byte per cell, row by row, in base64; 255 is the largest weight"
    )


class Looks(BaseModel):
    rows: int
    columns: int
    box: tuple[float, float, float, float] = Field(description="the area that the cells cover, in px of the picture")


class Detection(BaseModel):
    width: int | None = Field(None, description="of the original picture")
    height: int | None = None
    threshold: float | None = Field(None, description="the score threshold chosen on validation pictures")
    objects: list[Object] | None = Field(None, description="highest scores first")
    looks: Looks | None = Field(None, description="with `looks`, if the model can be looked into")
    error: str | None = Field(None, description="instead of everything else: why this picture could not be read")


class Detections(BaseModel):
    model: str
    results: list[Detection] = Field(description="one per picture, in the order given")


class Named(BaseModel):
    label: str
    probability: float | None = Field(ge=0, le=1, description="among the given names; null for one name alone")
    match: float | None = Field(
        None, description="of SigLIP: the probability that picture and name belong together, whatever the other names"
    )
    similarity: float = Field(description="cosine similarity of picture and name")
    places: str | None = Field(None, description="with `places`: one byte per place, row by row, in base64")


class PlacesOf(BaseModel):
    rows: int
    columns: int
    least: float = Field(description="the cosine similarity that a byte of 0 stands for")
    most: float = Field(description="the cosine similarity that a byte of 255 stands for")


class Naming(BaseModel):
    label: str | None = Field(None, description="the most likely name; null for one name alone")
    top: list[Named] | None = Field(None, description="all names, most likely first")
    places: PlacesOf | None = Field(None, description="with `places`: covers the part of the picture the model sees")
    error: str | None = Field(None, description="instead of everything else: why this picture could not be read")


class Namings(BaseModel):
    model: str
    results: list[Naming] = Field(description="one per picture, in the order given")


class Hit(BaseModel):
    name: str
    score: float = Field(description="cosine similarity")
    picture: str | None = Field(description="a data URL; null if the file has moved")


class Found(BaseModel):
    model: str
    total: int = Field(description="pictures in the index")
    results: list[Hit] = Field(description="most similar first")


class Embedding(BaseModel):
    embedding: list[float] | None = Field(None, description="the encoder's pooled features")
    error: str | None = None


class Embeddings(BaseModel):
    model: str
    width: int
    results: list[Embedding]


class NeighbourOut(BaseModel):
    label: str
    similarity: float = Field(description="cosine similarity of pooled features")
    picture: str = Field(description="a data URL")


class Neighbours(BaseModel):
    model: str
    indexed: int = Field(description="training pictures indexed so far")
    total: int = Field(description="training pictures that will be indexed")
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


def body(num: int, texts: int = 0) -> dict[str, Any]:
    """The request bodies of an endpoint that takes up to `num` pictures, or up to `texts` texts."""
    spoken = {"texts": {"type": "array", "minItems": 1, "maxItems": texts, "items": {"type": "string"}}}
    many = {"type": "array", "minItems": 1, "maxItems": num}
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
        400: "malformed, or an option that the endpoint does not have",
        401: "the token is missing or wrong",
        403: "the request comes from another site, or names another host",
        404: "there is no such model, or it cannot do this",
        408: "the body arrived too slowly",
        413: "the body is too large",
        415: "this content type is not supported",
        422: "no picture could be read, or an option is out of range",
        429: "too many pictures are waiting",
        503: "the model is starting",
    }
    return {code: {"model": Error, "description": meanings[code]} for code in (*codes, 401, 403)}


ASKING = (400, 404, 408, 413, 415, 422, 429, 503)
