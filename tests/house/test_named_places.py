"""Every module, name and file that the pages and the scripts name is there."""

import importlib
import re
from pathlib import Path

import pytest

from tests.house.source import ROOT

TOP = ROOT.parents[1]
PAGES = [
    *sorted(path for path in (TOP / "docs").glob("*.md") if path.name != "log.md"),
    *sorted(TOP.glob("*.md")),
]
"""All pages but the log, which is history and names what has gone since."""
GUIDES = [path for path in PAGES if path.name != "CHANGELOG.md"]
"""Those whose names are there: changes say of names that have gone what to type instead."""
SCRIPTS = sorted(
    path for folder in ("benchmarks", "docs", "examples") for path in (TOP / folder).glob("*.py")
)
DOTTED = re.compile(r"\bhessblocks(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^ *from (hessblocks[\w.]*) import (\([^)]*\)|[^\n(]+)", re.MULTILINE)
FILE = re.compile(r"(?<![\w./*{-])[\w.-]+(?:/[\w.-]+)+\.(?:py|md|json|svg|png|csv|txt|toml|yml)\b")
MADE = "runs/"
"""Begins the path of a file that a command makes."""


def names(text: str) -> set[str]:
    """Dotted names of the library; a file's name that begins as one does not count."""
    return {name for name in DOTTED.findall(text) if f"{name}/" not in text}


def imported(text: str) -> set[str]:
    """Dotted names that code imports from the library."""
    found = set()
    for module, listed in IMPORT.findall(text):
        for name in listed.strip("()").split(","):
            if word := name.partition(" as ")[0].strip():
                found.add(f"{module}.{word}")
    return found


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or stands in one."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


def missing_files(text: str, beside: Path) -> set[str]:
    """Paths in a text that lead nowhere: from the page, the checkout, the package or the tests."""
    homes = (beside, TOP, ROOT, TOP / "tests")
    return {
        path
        for path in FILE.findall(text)
        if not path.startswith(MADE) and not any((home / path).exists() for home in homes)
    }


@pytest.mark.parametrize("page", [*GUIDES, *SCRIPTS], ids=lambda path: path.name)
def test_every_name_of_the_library_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [name for name in sorted(names(text) | imported(text)) if not is_there(name)] == []


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=lambda path: path.name)
def test_code_outside_the_library_enters_by_a_face(page: Path) -> None:
    modules = {module for module, _ in IMPORT.findall(page.read_text(encoding="utf-8"))}
    inner = [name for name in modules if not (ROOT.parent / name.replace(".", "/")).is_dir()]
    assert [name for name in inner if name.count(".") > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert missing_files(page.read_text(encoding="utf-8"), page.parent) == set()


def test_a_planted_wrong_name_and_a_planted_wrong_path_are_seen(tmp_path: Path) -> None:
    assert names("see `hessblocks.blocks.preset`") == {"hessblocks.blocks.preset"}
    assert is_there("hessblocks.blocks.preset")
    assert not is_there("hessblocks.blocks.pre_set")
    assert not is_there("hessblocks.bricks")
    code = "from hessblocks.blocks import (\n    Dense as D,\n    preset,\n)\n"
    assert imported(code) == {"hessblocks.blocks.Dense", "hessblocks.blocks.preset"}
    text = "`blocks/rules.py`, `blocks/bricks.py` and `runs/demo/report.html`, `docs/none.md`"
    assert missing_files(text, tmp_path) == {"blocks/bricks.py", "docs/none.md"}
