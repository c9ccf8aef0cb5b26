"""vitreous serve"""

import argparse

from vitreous.errors import UserError
from vitreous.verbs import add_device, add_quiet

HELP = "Serve predictions over HTTP, with a page that looks inside the model."


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a run, weights or an index; or two to compare")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="the port; 0: any free one (default: 8000)")
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to listen on; any but this machine's own needs a token"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="clients must send the text in this file (or in VITREOUS_TOKEN)"
    )
    parser.add_argument(
        "--host-name", action="append", default=[], metavar="NAME", help="a host name under which it is reached"
    )
    parser.add_argument(
        "--queue", type=int, metavar="N", help="pictures admitted at once per model (default: 6; 32 on a GPU)"
    )
    parser.add_argument("--max-batch", type=int, metavar="N", help="pictures per batch (default: 4; 16 on a GPU)")
    parser.add_argument(
        "--max-body-mb", type=float, default=16, metavar="N", help="largest request, in MB (default: 16)"
    )
    parser.add_argument(
        "--neighbours", type=int, default=2000, metavar="N", help="training pictures to search for neighbours"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads per model (default: all cores)")
    add_device(parser)
    add_quiet(parser)
    parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")


def run(options: argparse.Namespace) -> None:
    from vitreous.serve.settings import ServeSettings

    settings = ServeSettings(
        models=tuple(options.models),
        port=options.port,
        address=options.address,
        token=token(options.token_file),
        host_names=tuple(options.host_name),
        queue=options.queue,
        max_batch=options.max_batch,
        max_body_mb=options.max_body_mb,
        neighbours=options.neighbours,
        threads=options.threads,
        device=options.device,
    )
    try:
        from vitreous.serve.server import serve
    except ImportError as error:
        raise UserError(f"serving needs {error.name}, which is not installed: pip install 'vitreous[serve]'") from None

    def say(line: str) -> None:
        if not options.quiet:
            print(line, flush=True)

    serve(settings, say, opens=not options.no_open and has_display())


def token(path: str | None) -> str | None:
    import os
    from pathlib import Path

    if path is None:
        return os.environ.get("VITREOUS_TOKEN")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {path}: {getattr(error, 'strerror', None) or 'no text'}") from None


def has_display() -> bool:
    import os
    import sys

    return sys.stdout.isatty() and (
        sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    )
