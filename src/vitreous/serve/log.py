"""What the service writes to stderr: a bounded number of lines, whatever clients do."""

import logging
import time
from collections.abc import Callable

NUM_RECORDS, PERIOD_S = 20, 60.0

log = logging.getLogger("vitreous.serve")


class Quota(logging.Filter):
    """Passes up to NUM_RECORDS per period. The first of the next period says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.clock, self.ends = clock, clock() + PERIOD_S
        self.num_seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self.clock() >= self.ends:
            num_left_out = max(0, self.num_seen - NUM_RECORDS)
            self.ends, self.num_seen = self.clock() + PERIOD_S, 0
            if num_left_out:
                record.msg, record.args = f"{record.getMessage()} ({num_left_out} earlier messages were left out)", ()
        self.num_seen += 1
        return self.num_seen <= NUM_RECORDS


def log_to_stderr() -> None:
    """Our messages, uvicorn's and asyncio's share one quota in this process."""
    handler = logging.StreamHandler()
    handler.addFilter(Quota())
    for name, level in (
        ("vitreous.serve", logging.WARNING),
        ("uvicorn.error", logging.ERROR),
        ("asyncio", logging.ERROR),
    ):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
