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


@dataclass(frozen=True, kw_only=True)
class Toy:
    name: str
    count: int
    value: float
    error: float | None
    layer: int | None = None


GOOD = {"name": "a", "count": "3", "value": "0.5", "error": ""}


def read(**changes: Any) -> Toy:
    values: Mapping[str, Any] = {**GOOD, **changes, "more": "left alone"}
    (found,) = records(Toy, Path("toy.csv"), iter([(7, values)]))
    return found


def test_each_field_is_read_by_its_type() -> None:
    assert read() == Toy(name="a", count=3, value=0.5, error=None)
    assert read(layer="2", error=0.1) == Toy(name="a", count=3, value=0.5, error=0.1, layer=2)
    assert math.isnan(read(value=None).value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": "many"}, "invalid literal"),
        ({"value": "much"}, "could not convert"),
        ({"value": True}, "expected a number, got True"),
        ({"error": [1]}, "expected a number"),
    ],
)
def test_another_type_is_named_by_its_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=rf"toy\.csv, line 7: .*{words}.*; mend or remove it"):
        read(**changes)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RunError, match=r"toy\.csv, line 7: count is missing"):
        list(records(Toy, Path("toy.csv"), iter([(7, {"name": "a"})])))
