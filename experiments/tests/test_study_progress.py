"""Lines of progress where standard error is no terminal."""

import pytest

from hessblocks_studies import study_bars
from hessblocks_studies.engine.reporter import StudyProgress
from hessblocks_studies.study_bars import LineReporter


def at(done: int, seconds_left: float | None) -> StudyProgress:
    return StudyProgress(study="mlp", done=done, failed=0, total=9, seconds_left=seconds_left)


def test_a_line_at_both_ends_and_one_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = 1000.0
    monkeypatch.setattr(study_bars.time, "monotonic", lambda: clock)
    reporter = LineReporter()
    for done in range(10):  # a point every 25 seconds
        reporter.show(at(done, None if done == 0 else 25.0 * (9 - done)))
        clock += 25.0
    assert capsys.readouterr().err.splitlines() == [
        "mlp: 0 of 9 points",
        "mlp: 3 of 9 points, 0:02:30 left",
        "mlp: 6 of 9 points, 0:01:15 left",
        "mlp: 9 of 9 points",
    ]
