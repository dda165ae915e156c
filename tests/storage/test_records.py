"""Objects from lines: each field by its type, defaults for what is missing, damage named by its
line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hessblocks.errors import RunError
from hessblocks.storage.tables import records
from hessblocks.typed import LINES, TEXT


@dataclass(frozen=True, kw_only=True)
class Toy:
    name: str
    count: int
    value: float
    error: float | None
    layer: int | None = None


CELLS = {"name": "a", "count": "3", "value": "0.5", "error": ""}
VALUES = {"name": "a", "count": 3, "value": 0.5, "error": None}


def read(values: Mapping[str, Any], **changes: Any) -> Toy:
    converter = TEXT if values is CELLS else LINES
    line = {**values, **changes, "more": "left alone"}
    (found,) = records(Toy, Path("toy"), [(7, line)], converter)
    return found


def test_each_field_is_read_by_its_type() -> None:
    for values in (CELLS, VALUES):
        assert read(values) == Toy(name="a", count=3, value=0.5, error=None)
    assert read(CELLS, layer="2", error="0.1") == read(VALUES, layer=2, error=0.1)
    assert isinstance(read(CELLS, value="3").value, int)
    assert math.isnan(read(CELLS, value="nan").value)
    assert math.isnan(read(VALUES, value=None).value)


@pytest.mark.parametrize(
    ("values", "changes", "words"),
    [
        (CELLS, {"count": "many"}, "count: expected a whole number, got 'many'"),
        (CELLS, {"count": ""}, "count: expected a whole number, got ''"),
        (CELLS, {"layer": "1.5"}, "layer: expected a whole number or nothing, got '1.5'"),
        (CELLS, {"value": "much"}, "value: expected a number, got 'much'"),
        (VALUES, {"value": True}, "value: expected a number, got True"),
        (VALUES, {"count": True}, "count: expected a whole number, got True"),
        (VALUES, {"count": "3"}, "count: expected a whole number, got '3'"),
        (VALUES, {"count": 3.7}, "count: expected a whole number, got 3.7"),
        (VALUES, {"name": 3}, "name: expected a text, got 3"),
        (VALUES, {"error": [1]}, "error: expected a number or nothing, got .1."),
    ],
)
def test_another_type_is_named_by_its_line(
    values: Mapping[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=rf"toy, line 7: {words}; mend or remove it"):
        read(values, **changes)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RunError, match=r"toy, line 7: count is missing; mend"):
        list(records(Toy, Path("toy"), [(7, {"name": "a", "value": 1.0})], LINES))
