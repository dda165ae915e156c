"""Print what could be tidier, and forbid nothing: `python -m tests.house.advice`, a part of `make
lint`."""

from __future__ import annotations

import collections
import re
from pathlib import Path

from tests.house.source import ROOT, files

TOP = ROOT.parents[1]
WIDTH = 122
"""Characters of a line of the README's prose."""
SCREEN = 50
"""Lines of the map that are seen at once."""


def wide(page: str) -> list[str]:
    """Lines of prose that are long."""
    prose = [line for line in page.splitlines() if not line.startswith(("|", "!["))]
    return [f"README.md: {len(one)} characters: {one[:40]}..." for one in prose if len(one) > WIDTH]


def without_subject(log: str) -> list[str]:
    """Paragraphs that do not begin with what they are about."""
    bodies = re.split(r"^## .*\n", log, flags=re.MULTILINE)[1:]
    paragraphs = [one for body in bodies for one in body.strip().split("\n\n") if one]
    return [f"docs/log.md: no subject: {p[:40]}..." for p in paragraphs if not p.startswith("**")]


def long_map(page: str) -> list[str]:
    """The map, where it does not fit on a screen."""
    drawn = page.partition("## The map")[2].partition("```text\n")[2].partition("```")[0]
    count = len(drawn.splitlines())
    return [f"CONTRIBUTING.md: the map has {count} lines"] if count > SCREEN else []


def shared_names(root: Path) -> list[str]:
    """Names of modules that stand in several packages; within one a test forbids it."""
    places = collections.defaultdict(set)
    for path in files(root):
        if path.name != "__init__.py":
            places[path.stem].add(path.relative_to(root).parts[0])
    return [
        f"{name}.py: in {', '.join(sorted(own))}" for name, own in places.items() if len(own) > 1
    ]


def advice() -> list[str]:
    """All of it."""
    pages = ("README.md", "docs/log.md", "CONTRIBUTING.md")
    readme, log, guide = ((TOP / name).read_text(encoding="utf-8") for name in pages)
    return [*wide(readme), *without_subject(log), *long_map(guide), *shared_names(ROOT)]


if __name__ == "__main__":
    print(*(f"advice: {one}" for one in advice()), sep="\n")
