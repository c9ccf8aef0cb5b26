"""Weights from the Hugging Face hub, through its own library: its cache, its revisions, its offline mode.

`hf:OWNER/NAME`, `hf:OWNER/NAME@REVISION`, `hf:OWNER/NAME/FILE` and `timm:NAME`. Only files that are read are fetched.
What arrives is held against the hub's own checksum, which that library does not do, and a hub that falls silent is
abandoned within half a minute, where that library would retry for many.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vitreous.errors import UserError, did_you_mean
from vitreous.terminal import is_quiet
from vitreous.weights.names import DOCUMENTS, ENDINGS, INDICES, TOKENIZERS, WHOLE

FORM = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+))?(?:@(?P<revision>[\w./-]+))?")


NETWORK = ("httpx", "httpx2", "requests", "httpcore", "httpcore2")
COMMIT = re.compile(r"[0-9a-f]{40}")
SILENCE_S = 20.0  # without a byte from the hub before giving up
PIECE = 1 << 20  # bytes; what arrived since the last whole piece is lost when a connection is cut

T = TypeVar("T")


class Place(NamedTuple):
    repository: str
    file: str | None
    revision: str | None
    where: str  # as the user wrote it


class UnreachableError(UserError):
    """The hub cannot be reached, and the cache does not have everything."""


class SilenceError(Exception):
    """The hub accepted a request and sent nothing, or wants us to wait."""


def is_installed() -> bool:
    """The hub's own library, which the extra `hub` brings."""
    try:
        return find_spec("huggingface_hub") is not None
    except ValueError:  # a module that hides itself
        return False


def is_offline() -> bool:
    """HF_HUB_OFFLINE is set."""
    return bool(_library("offline mode").constants.HF_HUB_OFFLINE)


def fetch(
    where: str,
    *,
    silence_s: float = SILENCE_S,
    has_bars: bool = True,
    on_download: Callable[[], None] = lambda: None,
) -> Path:
    """The folder in the cache that holds the weights and their documents, or the one file that was named.

    A folder is called as its commit. A commit that is in the cache already is taken from there without asking the hub.
    `on_download` is called when the hub has answered, before the first file is asked for.
    """
    place = _place(where)
    hub = _library(where)
    found = in_cache(where) if COMMIT.fullmatch(place.revision or "") else None
    if found is not None:
        return found
    try:
        with _patience(hub, silence_s), _bars(hub, has_bars and not is_quiet()):
            known = _listed(hub, place, silence_s)
            if known is None:
                paths = _cached(hub, place)
            else:
                on_download()
                paths = _downloaded(hub, place, known)
    except UserError:
        raise
    except Exception as error:  # the library raises its own, its network's and the disk's errors
        raise UserError(f"{where}: {_reason(error)}") from None
    return _verified(paths, place)


def in_cache(where: str) -> Path | None:
    """What `fetch` would return, if it is there without asking the hub."""
    place = _place(where)
    try:
        return _verified(_cached(_library(where), place), place)
    except UserError:
        return None


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns, or a TimeoutError: for what no timeout of its own reaches, such as the lookup of a name.

    Work that is late goes on in the background, and nobody listens to it.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"not done after {seconds:g} s")
    return done[0]


def _library(where: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            f"{where}: the library `huggingface_hub` is not installed; run pip install 'vitreous[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def _patience(hub: Any, silence_s: float) -> Iterator[None]:
    """Every request of the library ends after this many seconds of silence, and is not retried.

    The library tries again up to 6 times with timeouts of 60 s, waits as long as a busy hub says, and asks for the
    list of files without any timeout. Its Xet client has timeouts of its own, so files come by plain HTTP.
    """
    first_asked: dict[tuple[str, str, str | None], float] = {}

    def before(request: Any) -> None:
        # A download that goes on after a cut asks for another range: that is a new request.
        same = (request.method, str(request.url), request.headers.get("Range"))
        if time.monotonic() - first_asked.setdefault(same, time.monotonic()) >= silence_s:
            raise SilenceError(f"the hub sent nothing for {silence_s:g} s")
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), silence_s)

    def after(response: Any) -> None:
        if response.status_code == 429 or "Retry-After" in response.headers:
            raise SilenceError(f"the hub is busy, status {response.status_code}")

    client, constants = hub.get_session(), hub.constants
    hooks, settings = client.event_hooks, (constants.HF_HUB_DISABLE_XET, constants.DOWNLOAD_CHUNK_SIZE)
    client.event_hooks = {"request": [*hooks["request"], before], "response": [*hooks["response"], after]}
    constants.HF_HUB_DISABLE_XET, constants.DOWNLOAD_CHUNK_SIZE = True, PIECE
    try:
        yield
    finally:
        client.event_hooks = hooks
        constants.HF_HUB_DISABLE_XET, constants.DOWNLOAD_CHUNK_SIZE = settings


@contextmanager
def _bars(hub: Any, are_shown: bool) -> Iterator[None]:
    """The library's own progress bars; what the user's environment says of them goes first."""
    if are_shown or hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        hub.utils.enable_progress_bars()


def _place(where: str) -> Place:
    kind, _, name = where.partition(":")
    name = f"timm/{name}" if kind == "timm" else name
    match = FORM.fullmatch(name)
    if kind not in ("hf", "timm") or not match or ".." in name:
        raise UserError(
            f"{where!a}: not an address on the hub; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION or timm:NAME"
        )
    return Place(match["repository"], match["file"], match["revision"], where)


def _listed(hub: Any, place: Place, silence_s: float) -> list[str] | None:
    """The files that the hub has; None where it cannot be asked."""
    try:
        # No timeout of the library's reaches the lookup of the hub's name, so it gets the same time from us.
        info = within(silence_s + 1, lambda: hub.HfApi().model_info(place.repository, revision=place.revision))
    except hub.errors.HfHubHTTPError as error:
        if isinstance(error, hub.errors.RepositoryNotFoundError | hub.errors.RevisionNotFoundError):
            raise
        return None  # the hub is down: the cache may do
    except OSError as error:  # TimeoutError and ConnectionError among them
        if isinstance(error, hub.errors.LocalTokenNotFoundError):
            raise
        return None
    except Exception as error:
        # The network's own errors are of a library that changes with the version of the hub's.
        if isinstance(error, SilenceError) or type(error).__module__.split(".")[0] in NETWORK:
            return None
        raise
    return [sibling.rfilename for sibling in info.siblings or []]


def _downloaded(hub: Any, place: Place, known: list[str]) -> list[Path]:
    def get(name: str) -> Path:
        return Path(hub.hf_hub_download(place.repository, name, revision=place.revision))

    # The weights come last: where they are in the cache, all that belongs to them is.
    documents = [get(name) for name in (*DOCUMENTS, *TOKENIZERS) if name in known] if not place.file else []
    weights = get(_chosen(known, place))
    shards = _shards(weights, place) if weights.name in INDICES else []
    return [weights, *documents, *(get(name) for name in shards if name in known)]


def _cached(hub: Any, place: Place) -> list[Path]:
    try:
        folder = Path(hub.snapshot_download(place.repository, revision=place.revision, local_files_only=True))
    except (FileNotFoundError, OSError, ValueError):
        raise UnreachableError(
            f"{place.where}: not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
        ) from None
    known = sorted(path.name for path in folder.iterdir())
    if place.file and (folder / place.file).is_file():
        known.append(place.file)
    weights = folder / _chosen(known, place)
    names = [name for name in (*DOCUMENTS, *TOKENIZERS) if name in known] if not place.file else []
    if weights.name in INDICES:
        names += _shards(weights, place)
    for name in names:
        if not (folder / name).is_file():
            raise UnreachableError(f"{place.where}: {name} is not in the cache, and the hub cannot be reached")
    return [weights, *(folder / name for name in names)]


def _chosen(known: list[str], place: Place) -> str:
    """The one file with the weights: safetensors if there are any."""
    if place.file:
        if place.file in known:
            return place.file
        raise UserError(f"{place.where}: has no file {place.file}.{did_you_mean(place.file, known)}")
    for name in (WHOLE[0], INDICES[0], WHOLE[1], INDICES[1], WHOLE[2]):
        if name in known:
            return name
    for ending in ENDINGS:
        found = [name for name in known if name.endswith(ending) and "/" not in name]
        if len(found) > 1:
            some = f"hf:{place.repository}/{found[0]}"
            raise UserError(f"{place.where}: has {len(found)} files of weights; name one of them, such as {some}")
        if found:
            return found[0]
    raise UserError(f"{place.where}: has no weights in a known format ({', '.join(ENDINGS)})")


def _shards(index: Path, place: Place) -> list[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        names = set()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*", name) for name in names):
        raise UserError(f"{place.where}: its {index.name} names no files beside it")
    return sorted(names)


def _verified(paths: list[Path], place: Place) -> Path:
    for path in paths:
        _verify(path, place.where)
    return paths[0] if place.file else paths[0].parent


def _verify(path: Path, where: str) -> None:
    """The cache keeps a file under its checksum: sha256 of large ones, Git's sha1 of small ones."""
    stored = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", stored.name):
        return
    digest = hashlib.sha256() if len(stored.name) == 64 else hashlib.sha1(b"blob %d\0" % stored.stat().st_size)
    with stored.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != stored.name:
        stored.unlink()
        path.unlink(missing_ok=True)
        raise UserError(f"{where}: {path.name} arrived damaged (its checksum is wrong) and was removed; fetch it again")


def _reason(error: Exception) -> str:
    """The library's errors run over many lines; the user needs one."""
    if isinstance(error, SilenceError):
        return f"{error}; try again later"
    for name, reason in (
        ("GatedRepoError", "access to it is restricted; accept the terms on its page, then run hf auth login"),
        ("RepositoryNotFoundError", "there is no such model on the hub (if it is private, run hf auth login)"),
        ("RevisionNotFoundError", "has no such revision"),
        ("EntryNotFoundError", "a file of it is not on the hub"),
    ):
        if name in (kind.__name__ for kind in type(error).__mro__):
            return reason
    lines = str(error).strip().splitlines()
    return f"cannot be fetched ({lines[0][:200] if lines else type(error).__name__}); try again"
