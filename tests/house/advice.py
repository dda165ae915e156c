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


def wide(page: str) -> list[str]:
    """Lines of prose that are long."""
    prose = [line for line in page.splitlines() if not line.startswith(("|", "!["))]
    return [f"README.md: {len(one)} characters: {one[:40]}..." for one in prose if len(one) > WIDTH]


def without_subject(log: str) -> list[str]:
    """Paragraphs, lists and tables that do not begin with what they are about."""
    begins = ("**", "- **", "| ")
    bodies = re.split(r"^## .*\n", log, flags=re.MULTILINE)[1:]
    paragraphs = [one for body in bodies for one in body.strip().split("\n\n") if one]
    return [f"docs/log.md: no subject: {p[:40]}..." for p in paragraphs if not p.startswith(begins)]


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
    readme, log = ((TOP / name).read_text("utf-8") for name in ("README.md", "docs/log.md"))
    return [*wide(readme), *without_subject(log), *shared_names(ROOT)]


if __name__ == "__main__":
    print(*(f"advice: {one}" for one in advice()), sep="\n")
