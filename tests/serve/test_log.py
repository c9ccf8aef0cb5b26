"""A bounded log."""

import logging

from vitreous.serve.log import NUM_RECORDS, PERIOD_S, Quota


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("name", logging.ERROR, "file", 1, "%s", (text,), None)


def test_a_quota_per_period_and_what_was_left_out():
    now = [0.0]
    quota = Quota(lambda: now[0])
    assert sum(quota.filter(record("again")) for _ in range(1000)) == NUM_RECORDS
    now[0] = PERIOD_S - 0.1
    assert not quota.filter(record("again"))
    now[0] = PERIOD_S
    first, second = record("first"), record("second")
    assert quota.filter(first)
    assert quota.filter(second)
    assert first.getMessage() == f"first ({1001 - NUM_RECORDS} earlier messages were left out)"
    assert second.getMessage() == "second"
