"""The pages: links lead somewhere, every page is in the index."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def links(page: Path) -> list[str]:
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    missing = [
        target for target in links(page) if not (page.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []


def test_the_index_names_every_page() -> None:
    named = {(DOCS / target.partition("#")[0]).resolve() for target in links(DOCS / "index.md")}
    assert {page for page in PAGES if page.stem != "index"} <= named
