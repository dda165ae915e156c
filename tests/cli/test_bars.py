"""Off a terminal a stage tells that it goes on."""

import re
import time

import pytest

from hessblocks.cli import terminal


def test_a_long_stage_says_so_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "EVERY", 0.02)
    with terminal.ScreenProgress().stage("work"):
        time.sleep(0.2)
    time.sleep(0.05)
    *told, last = capsys.readouterr().err.splitlines()
    assert last.startswith("work: 0.")
    assert told
    assert all(
        re.fullmatch(r"work: \d+ s so far", line) for line in told
    )  # seconds on a busy machine
