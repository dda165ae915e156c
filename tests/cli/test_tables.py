"""Paths as the terminal shows them."""

import pytest

from hessblocks.cli.terminal import show


def test_a_path_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = "report  " + "a folder/" * 20 + "[red]/:smile:/report.html"
    show({}, ["a line"], [path], as_json=False)
    assert capsys.readouterr().out == f"a line\n{path}\n"
