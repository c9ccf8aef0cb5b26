"""The page's files, read once at startup. A request's path is looked up in this table, and never opened."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".ico": "image/x-icon",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class PageFile:
    content: bytes
    type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Everything in the folder `page`, by path; index.html is also at /."""
    found = dict(_below(files("vitreous.serve") / "page", ""))
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found


def _below(folder: Traversable, path: str) -> list[tuple[str, PageFile]]:
    found: list[tuple[str, PageFile]] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        here = f"{path}/{entry.name}"
        kind = TYPES.get("." + entry.name.rpartition(".")[2])
        if entry.is_dir():
            found += _below(entry, here)
        elif kind is not None:
            content = entry.read_bytes()
            found.append((here, PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')))
    return found
