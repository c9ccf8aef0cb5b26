"""Index: a folder's embeddings, laid out for search.

INDEX/manifest.json, plan.jsonl, rows/     as written by `vitreous embed` (`bulk.output`), of length 1
INDEX/vectors.npy                          (N, D) float32 for all pictures that could be read; memory-mapped
INDEX/vectors.sha256                       of every part of that file (`checked`)
INDEX/names.arrow                          their names, row for row; memory-mapped too
INDEX/vectors.usearch                      with --approximate: which vectors are near each other (`neighbours`)

Once these files are written, `searchable` in the manifest says which plan they belong to, and their sha256. A rerun
that finds other pictures removes that entry, and one that finds a damaged file writes it again.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from vitreous.bulk.arrays import embeddings
from vitreous.bulk.output import MANIFEST, Output
from vitreous.bulk.places import is_url
from vitreous.data.images import BadPicture, read_picture
from vitreous.display.words import counted, percent
from vitreous.errors import UserError
from vitreous.prediction.embedder import Embedder
from vitreous.search.checked import REWRITES, CheckedVectors, digests
from vitreous.search.nearest import Floats, Rows, duplicates, nearest, outliers
from vitreous.search.neighbours import Neighbours, is_installed, recall
from vitreous.storage import atomic
from vitreous.terminal import note

VECTORS, DIGESTS, NAMES, GRAPH = "vectors.npy", "vectors.sha256", "names.arrow", "vectors.usearch"
SCHEMA = pa.schema([("name", pa.string())])


class Hit(NamedTuple):
    name: str
    score: float


def is_index(where: str) -> bool:
    """Whether the folder is an index, complete or not."""
    path = Path(where, MANIFEST)
    return not is_url(where) and path.is_file() and (Output(where).manifest() or {}).get("verb") == "index"


def lay_out(output: Output, approximate: bool = False) -> None:
    """Write the files that are searched from complete rows; `approximate`: with a graph of neighbours."""
    about = output.manifest()
    assert about is not None and about["done"]
    if not (_is_searchable(about) and _is_whole(Path(output.where), about)):
        about = {**about, "searchable": {"plan": about["plan"]["sha256"], "files": _laid_out(output, about)}}
        output.write_manifest(about)
    if approximate and GRAPH not in about["searchable"]["files"] and about["done"]["rows"] > about["done"]["failed"]:
        output.write_manifest({**about, "searchable": about["searchable"] | _linked(Path(output.where), about)})


def _laid_out(output: Output, about: dict[str, Any]) -> dict[str, str]:
    """Write vectors and names, part by part. Returns the sha256 of the names, and of the vectors' digests."""
    store, num = output.store, about["done"]["rows"] - about["done"]["failed"]
    header = {"descr": "<f4", "fortran_order": False, "shape": (num, about["width"])}
    with store.writing(VECTORS) as values, store.writing(NAMES) as names, pa.ipc.new_file(names, SCHEMA) as lines:
        np.lib.format.write_array_header_2_0(values, header)
        for table in output.tables():
            readable = table.filter(table["embedding"].is_valid())
            for block in embeddings(readable, about["width"]):
                values.write(block.astype("<f4").tobytes())
            lines.write_table(readable.select(["name"]))
    with store.writing(DIGESTS) as file:
        file.write(digests(Path(output.where, VECTORS)))
    return {name: _sha256(Path(output.where, name)) for name in (DIGESTS, NAMES)}


def _linked(where: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Build the graph. Returns its entries in the manifest: its sha256, and the share of the nearest that it finds."""
    vectors = np.load(where / VECTORS, mmap_mode="r", allow_pickle=False)
    neighbours = Neighbours.of(vectors)
    found = recall(neighbours, vectors)
    with atomic.placed(where / GRAPH) as new:
        neighbours.save(new)
    note(f"a search finds {percent(found)} of the nearest; `vitreous search --exact` compares with every picture")
    return {"files": about["searchable"]["files"] | {GRAPH: _sha256(where / GRAPH)}, "found": found}


def _is_searchable(about: dict[str, Any]) -> bool:
    found = about.get("searchable")
    is_of_plan = isinstance(found, dict) and found.get("plan") == about["plan"]["sha256"]
    return bool(about["done"]) and is_of_plan and DIGESTS in about["searchable"]["files"]  # earlier versions had none


def _is_whole(where: Path, about: dict[str, Any]) -> bool:
    try:
        _opened(where, about).compare_all()
    except UserError:
        return False
    return True


def _opened(where: Path, about: dict[str, Any], unread: tuple[str, ...] = ()) -> CheckedVectors:
    """The vectors, which are compared as they are read. All other files are compared now, except `unread`."""
    for name, expected in about["searchable"]["files"].items():
        path = where / name
        if not path.is_file():
            raise UserError(f"{path}: missing; {REWRITES}")
        if name not in unread and _sha256(path) != expected:
            raise UserError(f"{path}: damaged (its sha256 is not the one in {MANIFEST}); {REWRITES}")
    return CheckedVectors(where / VECTORS, (where / DIGESTS).read_bytes())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Index:
    where: str
    about: dict[str, Any]
    vectors: CheckedVectors  # (N, D) of length 1
    names: pa.ChunkedArray
    neighbours: Neighbours | None = None  # the graph that proposes vectors to compare, if it is used

    @classmethod
    def open(cls, where: str, exact: bool = False) -> "Index":
        if is_url(where):
            raise UserError(f"{where}: only an index on a local disk can be searched; copy it here first")
        about = Output(where).manifest()
        if about is None or about["verb"] != "index":
            raise UserError(f"{where}: not an index; `vitreous index FOLDER --model MODEL --out {where}` makes one")
        if not _is_searchable(about):
            raise UserError(f"{where}: incomplete; run the same `vitreous index` command again to finish it")
        follows = not exact and GRAPH in about["searchable"]["files"]
        if follows and not is_installed():
            note("every picture is compared: for the index's graph, pip install 'vitreous[neighbours]'")
            follows = False
        # A search by graph reads little of the graph and of the vectors, so checking all of both would take longer. The
        # proposals of a damaged graph are still compared exactly.
        vectors = _opened(Path(where), about, unread=(GRAPH,))
        if not follows:
            vectors.compare_all()
        names = pa.ipc.open_file(pa.memory_map(str(Path(where, NAMES)))).read_all()["name"]
        if not len(names):
            raise UserError(f"{where}: contains no readable pictures")
        return cls(where, about, vectors, names, Neighbours.open(Path(where, GRAPH)) if follows else None)

    def model(self, otherwise: str = "") -> str:
        """Where the model that it was made with lay then; `otherwise`: what to do if it is gone."""
        where: str = self.about["model"]["where"]
        if Path(where).is_absolute() and not Path(where).exists():
            raise UserError(f"{where}: the model of {self.where} is no longer there{otherwise}")
        return where

    def embedder(self, model: str | None = None, device: str = "auto") -> Embedder:
        """The embedder of the model that the index was made with, from its recorded path or the given one."""
        found = Embedder.load(model or self.model("; --model says where it is now"), device)
        if found.fingerprint != self.about["model"]["fingerprint"]:
            raise UserError(f"{found.where}: not the model that {self.where} was made with, or it has changed since")
        return found

    # ---- queries

    def by_words(self, words: str, embedder: Embedder, num: int) -> list[Hit]:
        return self.by_vector(embedder.embed_texts([words])[0], num)

    def by_picture(self, path: str, embedder: Embedder, num: int) -> list[Hit]:
        try:
            (vector,) = embedder.embed([read_picture(Path(path))])
        except BadPicture as error:
            raise UserError(f"{path}: {error}") from None
        return self.by_vector(vector / max(float(np.linalg.norm(vector)), 1e-12), num)

    def by_vector(self, vector: Floats, num: int) -> list[Hit]:
        """(D,) of length 1."""
        if self.neighbours is not None:
            return self._hits(*self.neighbours.nearest(self.vectors, vector, num))
        return self._hits(*nearest(self.vectors, vector, num))

    def duplicates(self, least: float, num: int) -> list[list[Hit]]:
        """Groups, the largest first; the score of each picture is its similarity to the first of its group, which those
        most like it follow."""
        return [self._hits(*self._by_likeness(rows)) for rows in duplicates(self.vectors, least)[:num]]

    def _by_likeness(self, group: Rows) -> tuple[Rows, Floats]:
        scores = self.vectors[group] @ self.vectors[group[0]]
        order = np.concatenate([[0], 1 + np.argsort(-scores[1:], kind="stable")])
        return group[order], scores[order]

    def outliers(self, num: int) -> list[Hit]:
        if len(self.names) < 3:
            raise UserError(f"{self.where}: {counted(len(self.names), 'picture')}; outliers need at least three")
        return self._hits(*outliers(self.vectors, num))

    def _hits(self, rows: Rows, scores: Floats) -> list[Hit]:
        scores = np.minimum(scores, 1)  # which rounding may exceed
        return [Hit(self.names[int(row)].as_py(), float(score)) for row, score in zip(rows, scores, strict=True)]
