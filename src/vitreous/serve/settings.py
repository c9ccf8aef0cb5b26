"""The settings of `vitreous serve`."""

from dataclasses import dataclass

from vitreous.data.images import MAX_PIXELS
from vitreous.errors import UserError

MIN_TOKEN = 16  # characters


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    models: tuple[str, ...]  # anything `vitreous.load` reads, or an exported model; the first is the default
    address: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    token: str | None = None  # what clients must send; required for any address that others can reach
    host_names: tuple[str, ...] = ()  # further names under which the service is reached, as browsers write them in Host
    queue: int | None = None  # pictures admitted per model, waiting or in progress; none: what suits the device
    max_batch: int | None = None  # pictures per batch; none: what suits the device
    max_body_mb: float = 16.0  # per request
    max_pictures: int = 16  # per request
    max_pixels: int = MAX_PIXELS // 2  # per picture
    max_connections: int = 256  # open at once
    device: str = "auto"
    threads: int | None = None  # per model; none: all cores
    neighbours: int = 2000  # training pictures to search; 0: none
    examples: int = 12  # pictures to try, shown on the page

    def __post_init__(self) -> None:
        if not 1 <= len(self.models) <= 2:
            raise UserError(f"{len(self.models)} models: serve takes one, or two to compare")
        for name, least, most in (
            ("queue", 1, 4096),
            ("max_batch", 1, 1024),
            ("max_pictures", 1, 1024),
            ("max_connections", 8, 65536),
            ("port", 0, 65535),
            ("neighbours", 0, 100_000),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UserError(f"{name} is {value}: it must be from {least} to {most:,}")
        if self.max_body_mb <= 0:
            raise UserError(f"max_body_mb is {self.max_body_mb:g}: it must be above 0")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads is {self.threads}: it must be at least 1")
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii() or " " in self.token):
            raise UserError(f"the token must be at least {MIN_TOKEN} ASCII characters without spaces")

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1e6)

    @property
    def pictures_per_request(self) -> int:
        """At most the length of the queue if that was given. A default queue may be shorter: see `check_room`."""
        return self.max_pictures if self.queue is None else min(self.max_pictures, self.queue)
