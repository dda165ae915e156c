"""What a run of the tests says of packages that it lacked."""

from types import SimpleNamespace

import pytest


def test_the_last_lines_count_the_tests_that_each_missing_package_skipped(
    request: pytest.FixtureRequest,
) -> None:
    with pytest.raises(pytest.skip.Exception) as missing:
        pytest.importorskip("no_such.package")
    reasons = [
        str(missing.value),
        "Skipped: not installed: chromium, chromium-driver; on Debian: apt-get install chromium",
        "not installed: chromium",
        "no git repository",
    ]
    reports = [SimpleNamespace(longrepr=("file", 1, reason)) for reason in reasons]
    lines: list[str] = []
    reporter = SimpleNamespace(getreports={"skipped": reports}.get, write_line=lines.append)
    (hook,) = (
        implementation.function
        for implementation in request.config.hook.pytest_terminal_summary.get_hookimpls()
        if implementation.plugin_name.endswith("conftest.py")
    )
    assert next(hook(terminalreporter=reporter)) is None
    assert lines == []  # pytest's own summary comes before
    assert [*hook(terminalreporter=reporter)] == [None]
    assert lines == [
        "not installed: chromium; tests or files skipped: 2",
        "not installed: no_such.package; tests or files skipped: 1",
        "not installed: chromium-driver; tests or files skipped: 1",
    ]
