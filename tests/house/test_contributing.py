"""The maps of CONTRIBUTING.md are those of the packages' docstrings and the law of imports."""

import re
from pathlib import Path

import pytest

from tests.house.contributing_map import PAGE, entry, with_maps
from tests.house.test_import_law import BASE, OPEN

TEXT = PAGE.read_text(encoding="utf-8")
MAKEFILE = PAGE.with_name("Makefile").read_text(encoding="utf-8")


def test_the_maps_are_current() -> None:
    assert with_maps(TEXT) == TEXT, "python -m tests.house.contributing_map writes them anew"


def test_a_map_that_was_edited_is_written_anew() -> None:
    assert TEXT.count("← architectures, blocks\n") == 1
    for edited in (
        TEXT.replace("← architectures, blocks\n", "← linalg\n"),
        TEXT.replace("\n  spectra ", "\n  x "),
    ):
        assert with_maps(edited) == TEXT
    with pytest.raises(ValueError, match="lacks"):
        with_maps(TEXT.replace("<!-- end of the studies -->", ""))


def test_an_entry_is_the_first_line_of_a_docstring(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text('"""Hold means.\n\nMore."""\n')
    assert entry("  room", tmp_path / "room", "a, b") == "  room            Hold means  ← a, b"
    wide = entry("room", tmp_path / "room", ", ".join(["neighbour"] * 12)).splitlines()
    assert [line.split()[0] for line in wide] == ["room", "←"]


def test_what_is_open_to_all_is_reported() -> None:
    (said,) = re.findall(r"14 modules\. (.+?) are open to all", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", said)) | {"_version"} == BASE | OPEN


def test_the_tables_of_targets_are_those_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)
    named = re.findall(r"^make ([\w-]+)", TEXT, re.MULTILINE)
    assert named
    assert set(named) <= set(targets)
