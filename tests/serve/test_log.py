"""A bounded log."""

import logging

from vitreous.serve.log import Quota


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("name", logging.ERROR, "file", 1, "%s", (text,), None)


def test_a_quota_per_period_and_what_was_left_out():
    now = [0.0]
    quota = Quota(num=3, period_s=10, clock=lambda: now[0])
    assert sum(quota.filter(record("again")) for _ in range(1000)) == 3
    now[0] = 9.9
    assert not quota.filter(record("again"))
    now[0] = 10.0
    first, second = record("first"), record("second")
    assert quota.filter(first)
    assert quota.filter(second)
    assert first.getMessage() == "first (998 earlier messages were left out)"
    assert second.getMessage() == "second"
