"""Off a terminal a stage tells that it goes on; told times are of whole commands."""

import re
import time

import pytest

from hessblocks.cli import terminal
from hessblocks.progress import PAGE, Progress


def test_a_long_stage_says_so_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "EVERY", 0.02)
    with terminal.ScreenProgress().stage("work"):
        time.sleep(0.2)
    time.sleep(0.05)
    *told, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"work: [\d.]+ s", last)
    assert told
    assert all(
        re.fullmatch(r"work: \d+ s so far", line) for line in told
    )  # seconds on a busy machine


def test_a_told_time_counts_what_is_spent_and_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((5.0, 12.0, 12.0, 12.0))
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    told = "in all, start and page included, about {:.2g} s".format
    assert Progress().in_all(9.0) == told(7 + 9 + PAGE)
    assert terminal.ScreenProgress().in_all(9.0) == told(12 + 9 + PAGE)  # with imports
