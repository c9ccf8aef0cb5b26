import io
import re
import sys

import pytest

from vitreous import terminal
from vitreous.terminal import Bar, duration, table, track


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(terminal, "time", Clock())
    return terminal.time


def test_quietly_drops_bars_and_lines_and_keeps_warnings(clock, capsys):
    with terminal.quietly(), Bar("training", 100) as bar:
        clock.now += 20
        bar.update(50)
        print("on the way")
        print("a warning", file=sys.stderr)
    with terminal.quietly(False):
        print("here")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("here\n", "a warning\n")


def test_durations():
    assert [duration(seconds) for seconds in (0, 59.6, 125, 3725)] == ["0:00", "1:00", "2:05", "1:02:05"]


def test_plain_lines_where_there_is_no_terminal(clock, capsys):
    with Bar("training", 100, unit="steps") as bar:
        for step in (10, 20, 30):
            clock.now += 4
            bar.update(step, loss="0.5000", pictures="40/s", waiting="3%")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "training: 30/100 steps  2.5/s  0:28 left  loss 0.5000  pictures 40/s  waiting 3%"
    assert last == first


def test_work_that_is_soon_done_prints_nothing(clock, capsys):
    with Bar("decoding", 10) as bar:
        clock.now += 1
        bar.update(10)
    assert capsys.readouterr().err == ""


def test_a_failure_has_the_last_word(clock, capsys):
    with pytest.raises(KeyError), Bar("training", 10) as bar:
        clock.now += 11
        bar.update(5)
        raise KeyError
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_rate_counts_from_where_the_run_resumed(clock, capsys):
    with Bar("training", 100, done=90) as bar:
        clock.now += 10
        bar.update(95)
    assert capsys.readouterr().err.splitlines()[0] == "training: 95/100  0.5/s  0:10 left"


def test_silence(clock, capsys):
    with Bar("training", 100, silent=True) as bar:
        clock.now += 60
        bar.update(50)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    with Bar("training", 20, unit="steps") as bar:
        bar.update(10)
        bar.update(10, loss="0.1234", waiting="7%")
        bar.update(15)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n")
    last = [line for line in shown.splitlines() if "training" in line][-1]
    assert "15/20 steps" in last
    assert "left" in last
    assert "loss 0.1234  waiting 7%" in last  # facts stay until there are newer ones


def test_track_passes_everything_on(capsys):
    assert list(track(iter("abc"), "letters")) == ["a", "b", "c"]
    assert list(track(iter("abc"), "letters", total=3)) == ["a", "b", "c"]


def test_table():
    assert table([("a", "long cell"), ("bcd", "")], ("x", "y")).splitlines() == [
        "x    y",
        "---  ---------",
        "a    long cell",
        "bcd",
    ]


def test_wide_characters_take_two_columns():
    """Class names may be Chinese; a combining accent takes none."""
    assert table([("教会", "1"), ("e\u0301t\u00e9", "2")], ("", "n")).splitlines()[1:] == [
        "----  -",
        "教会  1",
        "e\u0301té   2",
    ]
