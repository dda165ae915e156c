"""Every module, name and file that the pages and the scripts name is there."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

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


def by_page(pages: list[Path], faults: Callable[[Path, str], set[str]]) -> dict[str, list[str]]:
    """Pages with faults, each with all of them."""
    listed = {page.name: sorted(faults(page, page.read_text(encoding="utf-8"))) for page in pages}
    return {name: wrong for name, wrong in listed.items() if wrong}


def unknown(page: Path, text: str) -> set[str]:
    """Names of the library that do not exist."""
    return {name for name in names(text) | imported(text) if not is_there(name)}


def inner_imports(page: Path, text: str) -> set[str]:
    """Modules inside a package that code outside the library imports."""
    modules = {module for module, _ in IMPORT.findall(text) if module.count(".") > 1}
    return {name for name in modules if not (ROOT.parent / name.replace(".", "/")).is_dir()}


def test_every_name_of_the_library_exists() -> None:
    assert by_page([*GUIDES, *SCRIPTS], unknown) == {}


def test_code_outside_the_library_enters_by_a_face() -> None:
    assert by_page([*PAGES, *SCRIPTS], inner_imports) == {}


def test_every_file_that_a_page_names_exists() -> None:
    assert by_page(PAGES, lambda page, text: missing_files(text, page.parent)) == {}


def test_a_planted_wrong_name_and_a_planted_wrong_path_are_seen(tmp_path: Path) -> None:
    assert names("see `hessblocks.blocks.preset`") == {"hessblocks.blocks.preset"}
    assert is_there("hessblocks.blocks.preset")
    assert not is_there("hessblocks.blocks.pre_set")
    assert not is_there("hessblocks.bricks")
    code = "from hessblocks.blocks import (\n    Dense as D,\n    preset,\n)\n"
    assert imported(code) == {"hessblocks.blocks.Dense", "hessblocks.blocks.preset"}
    text = "`blocks/rules.py`, `blocks/bricks.py` and `runs/demo/report.html`, `docs/none.md`"
    assert missing_files(text, tmp_path) == {"blocks/bricks.py", "docs/none.md"}
    assert inner_imports(tmp_path, "from hessblocks.blocks.weights import Dense\n") == {
        "hessblocks.blocks.weights"
    }
    assert inner_imports(tmp_path, code) == set()
    (tmp_path / "a.md").write_text("`hessblocks.bricks`")
    assert by_page([tmp_path / "a.md"], unknown) == {"a.md": ["hessblocks.bricks"]}
