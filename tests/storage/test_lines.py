"""Lines of a run are JSON that every reader takes."""

import json
import math
from pathlib import Path

import pytest

from hessblocks.storage.tables import append_line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(tmp_path: Path, value: float) -> None:
    append_line(tmp_path / "lines", {"loss": value, "seconds": 0.5, "layer": None})

    def refuse(word: str) -> float:
        raise ValueError(word)

    (line,) = (tmp_path / "lines").read_text().splitlines()
    found = json.loads(line, parse_constant=refuse)
    assert (found["loss"], found["seconds"], found["layer"]) == (None, 0.5, None)
