"""What is advised is seen where it is planted, and stops nothing."""

from pathlib import Path

import pytest

from tests.house import advice


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("a" * 122, 0),
        ("a" * 123, 1),
        ("| " + "a" * 200, 0),
        ("![" + "a" * 200 + "\n" + "b" * 130, 1),
    ],
)
def test_wide_lines_of_prose(page: str, found: int) -> None:
    assert len(advice.wide(page)) == found


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("# Log\n\nfree\n\n## 2026-01-02: b\n\n**B.** Two.\n", 0),
        ("## 2026-01-01: a\n\n- A: one.\n", 1),
        ("## 2026-01-01: a\n\nA.\n\n**B.** b\n\n## 2026-01-01: c\n\nC.\n", 2),
    ],
)
def test_paragraphs_without_a_subject(log: str, found: int) -> None:
    assert len(advice.without_subject(log)) == found


@pytest.mark.parametrize(("lines", "found"), [(50, 0), (51, 1), (90, 1)])
def test_a_long_map(lines: int, found: int) -> None:
    page = "## The map\n\n```text\n" + "a   b\n" * lines + "```\n"
    assert len(advice.long_map(page)) == found


def test_names_of_modules_in_several_packages(tmp_path: Path) -> None:
    for place in ("a/x", "b", "c"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("a/x/norms.py", "b/norms.py", "c/other.py", "b/__init__.py", "c/__init__.py"):
        (tmp_path / place).touch()
    assert advice.shared_names(tmp_path) == ["norms.py: in a, b"]


def test_it_reads_the_pages_that_there_are() -> None:
    assert all(isinstance(one, str) for one in advice.advice())
