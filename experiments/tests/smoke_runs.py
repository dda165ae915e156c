"""Runs of a trained study at smoke scale, by the way of the command: a point of each kind, and the
whole plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hessblocks.drawing import draw, write_picture
from hessblocks.figures.figure import Figure
from hessblocks_studies.engine.study import Scale, Study
from hessblocks_studies.gallery import read_figure
from hessblocks_studies.runner import StudyResult, run_study


def run_a_point_of_each_kind(
    study: Study,
    kind: Callable[[Any], object],
    out: Path,
    patch: pytest.MonkeyPatch,
    *,
    short: bool = False,
) -> StudyResult:
    """Measure the last point of each kind, with few steps if `short`; summarise what there is."""

    def few(scale: Scale, count: int | None) -> list[Any]:
        found = list({kind(point): point for point in study.settings(scale, count)}.values())
        if not short:
            return found
        return [
            replace(p, size=replace(p.size, steps=2 * p.size.evaluations, evaluation_sequences=8))
            for p in found
        ]

    patch.setattr(f"{study.measure.__module__}.STUDY", replace(study, settings=few))
    result = run_study(study.name, out=out, scale="smoke")
    assert result.points == result.measured == len(few("smoke", None))
    assert {column for row in result.rows for column in row} <= set(study.columns)
    assert read_figure(out / study.name / "figure.json").panels
    return result


def run_whole(study: Study, out: Path) -> tuple[StudyResult, Figure]:
    """Measure every point; the figure is drawn too."""
    result = run_study(study.name, out=out, scale="smoke")
    assert result.points == result.measured == len(study.settings("smoke", None))
    assert {column for row in result.rows for column in row} <= set(study.columns)
    figure = read_figure(out / study.name / "figure.json")
    png = write_picture(draw(figure), out / "figures", study.name)
    assert png.read_bytes().startswith(b"\x89PNG")
    return result, figure
