"""Start the server from its settings, and stop it."""

import ipaddress
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.routing import Route

from vitreous import platforms
from vitreous.errors import UserError
from vitreous.serve.api import build_app
from vitreous.serve.body import LEAST_BYTES_A_S, START_S
from vitreous.serve.files import page_files
from vitreous.serve.guard import PROBES, Doors, Guard, Scope
from vitreous.serve.listener import BACKLOG, BoundedServer
from vitreous.serve.log import log, log_to_stderr
from vitreous.serve.protocol import ANSWER_S, PatientProtocol
from vitreous.serve.service import Service
from vitreous.serve.settings import ServeSettings
from vitreous.serve.supervisor import MODEL_S

KEEP_ALIVE_S = 5
GRACE_S = 25  # for accepted requests after a signal to stop; Kubernetes kills after 30 s
SPARE_FILES = 40  # descriptors for everything but connections: files, models, and restarts of models
LEAST_CONNECTIONS = 8


def serve(settings: ServeSettings, say: Callable[[str], None] = print, opens: bool = False) -> None:
    """Serve until told to stop (SIGTERM, SIGHUP, Ctrl-C). Raises UserError if the server cannot start."""
    log_to_stderr()
    max_connections = _connections(settings.max_connections)
    listening = _bound(settings)
    port = listening.getsockname()[1]
    address = listening.getsockname()[0]
    service = Service(settings, _names(settings.models))
    files = page_files()
    doors = Doors(address, port, settings.host_names, settings.token)
    public = frozenset((*files, *PROBES))
    app = build_app(service, files)
    known = {route.path for route in app.routes if isinstance(route, Route)}

    def count(scope: Scope, status: int) -> None:
        path = scope["path"] if scope["path"] in known else "other"
        service.metrics.requests.labels(path, str(status)).inc()

    PatientProtocol.request_s = START_S + settings.max_body_bytes / LEAST_BYTES_A_S + MODEL_S + ANSWER_S
    config = uvicorn.Config(
        Guard(app, doors, public, count, lambda: service.is_stopping),
        http=PatientProtocol,
        log_config=None,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    shown = f"[{address}]" if ":" in address else address
    url = f"http://{shown if not ipaddress.ip_address(address).is_unspecified else 'localhost'}:{port}/"

    def welcome() -> None:
        say(f"{', '.join(service.models)}: {url} (Ctrl-C stops it)")
        if opens:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    server = _Server(config, max_connections, service, welcome)
    # uvicorn raises the signal that stopped it once more when it is done: this then ends the program quietly.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGHUP, lambda *_: server.handle_exit(signal.SIGTERM, None))
    server.run(sockets=[listening])
    for name, model in service.models.items():
        if model.failure is not None:
            raise UserError(model.failure if model.where in model.failure else f"{name}: {model.failure}")


class _Server(BoundedServer):
    def __init__(
        self, config: uvicorn.Config, max_connections: int, service: Service, welcome: Callable[[], None]
    ) -> None:
        """`welcome` is called once, when all models are ready."""
        super().__init__(config, max_connections)
        self.service, self.welcome, self.is_welcoming = service, welcome, False

    async def on_tick(self, counter: int) -> bool:
        if any(model.failure is not None for model in self.service.models.values()):
            self.should_exit = True
        if not self.is_welcoming and all(model.is_ready for model in self.service.models.values()):
            self.is_welcoming = True
            self.welcome()
        self.service.is_stopping = self.should_exit
        return await super().on_tick(counter)


def _bound(settings: ServeSettings) -> socket.socket:
    """A socket at the address. Raises UserError if it is taken, or if others could reach it without a token."""
    try:
        found = socket.getaddrinfo(settings.address, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"--address {settings.address}: {error.strerror or error}") from None
    family, _, _, _, place = found[0]
    if settings.token is None and not ipaddress.ip_address(place[0]).is_loopback:
        raise UserError(
            f"--address {settings.address} can be reached from other machines: give --token-file FILE, set "
            "VITREOUS_TOKEN, or use 127.0.0.1"
        )
    try:
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(f"{settings.address}, port {settings.port}: {error.strerror}; choose another --port") from None


def _connections(wanted: int) -> int:
    """The number that was asked for, or as many as the system's limit on open files leaves room for."""
    allowed = platforms.open_files(wanted + SPARE_FILES)
    found = min(wanted, allowed - SPARE_FILES)
    if found < LEAST_CONNECTIONS:
        raise UserError(f"only {allowed} files may be open at once: raise the limit, for example with `ulimit -n 1024`")
    if found < wanted:
        log.warning(
            "at most %d connections instead of %d: only %d files may be open (ulimit -n)", found, wanted, allowed
        )
    return found


def _names(models: tuple[str, ...]) -> list[str]:
    """Short names: the last part of each path, never the path itself."""
    names = []
    for where in models:
        path = Path(where)
        name = path.parent.name if path.name == "model" and path.parent.name else path.name or "model"
        names.append(name if name not in names else f"{name}-2")
    return names
