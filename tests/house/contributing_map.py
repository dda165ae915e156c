"""Write the maps of CONTRIBUTING.md from the first docstring lines of packages and modules and from
the law of imports: `python -m tests.house.contributing_map`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import ROOT, STUDIES
from tests.house.test_import_law import LAW, OPEN, ROOMS, STUDY_ROOMS

PAGE = ROOT.parents[1] / "CONTRIBUTING.md"
WIDTH = 120
"""Characters of a line; what may be imported goes on in a line of its own where it is longer."""
COLUMN = 17
"""Where summaries begin."""


def summary(path: Path) -> str:
    """First line of the docstring of a module, or of a package's `__init__`."""
    source = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".")


def entry(name: str, path: Path, below: str = "") -> str:
    """One package, room or module, with what it may import."""
    line = f"{name:{COLUMN}} {summary(path)}"
    arrow = f"← {below}" if below else ""
    together = f"{line}  {arrow}".rstrip()
    return together if len(together) <= WIDTH else f"{line}\n{' ' * COLUMN} {arrow}"


def allowed(package: str) -> str:
    """Packages that a package may import; those it may not, where these are fewer."""
    below = [name for name in LAW if name in LAW[package]]
    others = [name for name in LAW if name not in LAW[package] | OPEN | {package}]
    return ", ".join(below) if len(below) <= len(others) else f"all but {', '.join(others)}"


def library() -> Iterator[str]:
    """Modules at the root, then packages, each with its rooms."""
    for module in sorted(ROOT.glob("[!_]*.py")):
        yield entry(module.name, module)
    for package in LAW:
        yield entry(package, ROOT / package, allowed(package))
        for room in (room for room in ROOMS if room.startswith(f"{package}.")):
            name = room.partition(".")[2]
            yield entry(f"  {name}", ROOT / package / name, ", ".join(sorted(ROOMS[room])))


def studies() -> Iterator[str]:
    """Rooms of the second distribution."""
    for room, below in STUDY_ROOMS.items():
        yield entry(room, STUDIES / room, ", ".join(sorted(below)))


def with_maps(page: str) -> str:
    """A page whose texts between markers are the maps.

    Raises:
        ValueError: The page lacks a marker.
    """
    for name, lines in (("library", library()), ("studies", studies())):
        drawn = "\n".join(lines)
        begin, end = f"<!-- map of the {name} -->\n", f"<!-- end of the {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"CONTRIBUTING.md lacks {begin.strip()} or {end}")
        page = re.sub(
            f"{begin}.*?{end}",
            lambda _, text=f"{begin}```text\n{drawn}\n```\n{end}": text,
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(with_maps(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
