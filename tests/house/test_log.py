"""The log of decisions: dated headings, newest first."""

import datetime
import re

import pytest

from tests.house.source import ROOT

LOG = (ROOT.parents[1] / "docs" / "log.md").read_text(encoding="utf-8")


def disorder(text: str) -> list[str]:
    """What a log does not keep to."""
    found = []
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    dates = []
    for heading in parts[1::2]:
        dated = re.fullmatch(r"(\d{4}-\d\d-\d\d): \S.*", heading)
        if not dated:
            found.append(f"no date: {heading}")
            continue
        dates.append(datetime.date.fromisoformat(dated[1]))
    if dates != sorted(dates, reverse=True):
        found.append("not newest first")
    return found


def test_the_log_is_in_order() -> None:
    assert LOG.count("\n## ") > 1
    assert disorder(LOG) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("## 2026-01-02: b\n\n**B.** Two.\n\n## 2026-01-01: a\n\n**A.** One.\n", []),
        ("## 2026-01-01: a\n\n**A.** One.\n\n## 2026-01-02: b\n\n**B.**\n", ["not newest first"]),
        ("## Later\n\n**A.** One.\n", ["no date: Later"]),
        ("## 2026-01-01: a\n\n- A: one.\n", []),
    ],
)
def test_planted_disorder_is_seen(text: str, found: list[str]) -> None:
    assert disorder(text) == found
