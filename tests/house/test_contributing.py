"""The map of CONTRIBUTING.md is the law that the import tests hold."""

import re
from pathlib import Path

from tests.house.source import ROOT
from tests.house.test_import_law import BASE, LAW, OPEN, ROOMS, STUDY_ROOMS

PAGE = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
LINE = re.compile(r"(?P<inner> *)(?P<name>\w+)\s{2,}(?P<holds>[^←]*[^←\s])(?:\s+← (?P<below>.+))?")


def law(text: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Packages and rooms of a map, each with what it may import."""
    packages: dict[str, set[str]] = {}
    rooms: dict[str, set[str]] = {}
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        assert found, f"not a line of the map: {line!r}"
        below = set(filter(None, (found["below"] or "").removeprefix("all but ").split(", ")))
        if (found["below"] or "").startswith("all but "):
            assert below <= set(LAW), line
            below = set(LAW) - OPEN - below - {found["name"]}
        if found["inner"]:
            rooms[f"{list(packages)[-1]}.{found['name']}"] = below
        else:
            packages[found["name"]] = below
    return packages, rooms


def maps() -> list[str]:
    section = PAGE.partition("## The map")[2].partition("## Recipes")[0]
    return re.findall(r"```text\n(.*?)```", section, re.DOTALL)


def the_map() -> str:
    return maps()[0]


def test_the_map_is_the_law() -> None:
    assert law(the_map()) == (LAW, ROOMS)


def test_the_map_of_the_studies_is_their_law() -> None:
    (_, studies) = maps()
    assert law(studies) == (STUDY_ROOMS, {})


def test_what_is_open_to_all_is_said() -> None:
    (said,) = re.findall(r"14 modules\. (.+?) are open to all", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", said)) | {"_version"} == BASE | OPEN


def test_a_planted_wrong_line_is_seen() -> None:
    text = the_map()
    assert law(text.replace("← architectures, blocks\n", "← linalg\n")) != (LAW, ROOMS)
    without = "\n".join(line for line in text.splitlines() if "  spectra " not in line)
    assert law(without) != (LAW, ROOMS)


def test_the_tables_of_targets_are_those_of_the_makefile() -> None:
    made = re.findall(r"^([\w-]+):", Path(ROOT.parents[1] / "Makefile").read_text(), re.MULTILINE)
    asked = re.findall(r"^make ([\w-]+)", PAGE, re.MULTILINE)
    assert asked
    assert set(asked) <= set(made)
