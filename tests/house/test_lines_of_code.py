"""The count of lines of code leaves out what explains, and nothing else."""

from pathlib import Path

import pytest

from tests.house.lines_of_code import lines_of_code

SMALL = '''"""A module that says

what it is.
"""

# a comment
import os  # counts, with its comment


class Size:
    """A class."""

    width: int = 3
    """A field's meaning,
    on two lines."""


def area(
    size: Size,
) -> int:
    """A function."""
    text = """data

    of three lines"""
    return len(text) * size.width
'''


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("\n\n", 0),
        ("# only a comment\n", 0),
        ('"""Only a docstring."""\n', 0),
        ("x = 1\n\ny = 2  # two\n", 2),
        ("x = (\n    1,\n    2,\n)\n", 4),
        ("x: int = 1\n'''What x is,\nin two lines.'''\n", 1),
        ('text = """data\n\nof three lines"""\n', 3),
        ("x = 1; 'a docstring beside code'\n", 1),
        (SMALL, 10),
    ],
)
def test_code_is_counted_and_what_explains_it_is_not(
    tmp_path: Path, source: str, lines: int
) -> None:
    file = tmp_path / "small.py"
    file.write_text(source, encoding="utf-8")
    assert lines_of_code(file) == lines
