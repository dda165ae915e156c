"""Tests read what stands in the repository, so that they are the same in every clone."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FILES = sorted(
    file for half in ("tests", "experiments/tests") for file in TOP.joinpath(half).rglob("*.py")
)


def outside(text: str, depth: int) -> list[str]:
    """Parents of a file so many folders below the top that lie above it."""
    found = re.findall(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]", text)
    return [f"parents[{up}]" for up in found if int(up) >= depth]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_no_test_looks_outside_of_the_repository(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert outside(text, len(path.relative_to(TOP).parts)) == []


def test_a_look_outside_is_noticed() -> None:
    text = "A = Path(__file__).parents[2]\nB = Path(__file__).resolve()" + ".parents[3]"
    assert outside(text, 3) == ["parents[3]"]
    assert outside(text, 2) == ["parents[2]", "parents[3]"]
    assert outside(text, 4) == []
