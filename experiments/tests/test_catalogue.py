"""Every study by name, at smoke scale: complete, consistent, drawable, also from partial
results."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import ArgumentError
from hessblocks.storage import canonical
from hessblocks_studies.catalogue import find, names
from hessblocks_studies.engine import figure_fields
from hessblocks_studies.engine.point import plain
from hessblocks_studies.engine.study import SCALES
from hessblocks_studies.gallery import read_figure
from hessblocks_studies.gallery.page import write_gallery
from hessblocks_studies.runner import run_studies, run_study

QUICK = ("heatmap", "fig3a", "fig3b", "histograms", "deep-softmax", "deep-linear", "mlp",
    "sigma-linear", "one-matrix", "cross-blocks")  # fmt: skip
EVERY_DAY = ("fig3a", "histograms", "one-matrix")
"""The cheapest of growing norms, of histograms and of spectra; each other one takes seconds."""
quick = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in EVERY_DAY)) for name in QUICK],
)


@pytest.mark.parametrize("name", names())
def test_a_study_says_what_it_is_and_its_points_differ(name: str) -> None:
    study = find(name)
    assert study.title
    assert study.source
    assert study.published.endswith((".", "?"))
    sizes = []
    for scale in SCALES:
        points = study.points(scale)
        assert len({point.key for point in points}) == len(points) > 0
        sizes.append(len(points))
        more = study.points(scale, seeds=2)
        assert len({canonical(plain(point.settings)) for point in more}) == len(more)
    assert sizes[0] == min(sizes)  # grids of rates grow at the scale that was measured


@pytest.mark.parametrize("name", names())
def test_a_key_holds_every_setting_and_a_point_travels(name: str) -> None:
    def leaves(settings: dict[str, object]) -> list[str]:
        groups = {name: each for name, each in settings.items() if isinstance(each, dict)}
        own = [name for name, each in settings.items() if name not in groups and each is not None]
        return own + [name for each in groups.values() for name in leaves(each)]

    for scale in SCALES:
        for point in find(name).points(scale, seeds=1):
            stored = json.loads(point.key)["settings"]
            assert sorted(stored) == sorted(leaves(asdict(point.settings)))
            assert pickle.loads(pickle.dumps(point)) == point


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Measures studies where no test has yet; returns the folder of all."""
    folder = tmp_path_factory.mktemp("smoke")

    def measured(*wanted: str) -> Path:
        if missing := [name for name in wanted if not (folder / name).exists()]:
            run_studies(missing, out=folder, scale="smoke")
        return folder

    return measured


@quick
def test_no_fact_is_contradicted_at_smoke_scale(smoke: Callable[..., Path], name: str) -> None:
    result = run_study(name, out=smoke(name), scale="smoke")
    assert result.measured == 0
    assert result.checks
    assert [check for check in result.checks if check.holds is False] == []
    columns = set(find(name).columns)
    assert all(set(row) <= columns for row in result.rows)


def test_nothing_measured_decides_nothing() -> None:
    verdicts = [check.holds for name in names() for check in find(name).summarise([]).checks]
    assert len(verdicts) > 10
    assert set(verdicts) == {None}


@quick
def test_partial_results_are_summarised_too(smoke: Callable[..., Path], name: str) -> None:
    study = find(name)
    rows = run_study(name, out=smoke(name), scale="smoke").rows
    whole = study.summarise(rows)
    for count in (0, 1, len(rows) // 2):
        summary = study.summarise(rows[:count])
        assert json.dumps([summary.to_dict(), figure_fields(summary.figure)], allow_nan=False)
        assert summary.figure.title == whole.figure.title
        assert len(summary.figure.panels) <= len(whole.figure.panels)
        assert len(summary.checks) <= len(whole.checks)


@quick
def test_the_figure_is_drawn_from_its_file(smoke: Callable[..., Path], name: str) -> None:
    folder = smoke(name) / name
    figure = read_figure(folder / "figure.json")
    stored = (folder / "figure.json").read_text()
    assert json.loads(json.dumps(figure_fields(figure))) == json.loads(stored)
    png = write_picture(draw(figure), folder / "figures", name)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in png.with_suffix(".svg").read_text()


@pytest.mark.usefixtures("blank")
def test_the_gallery_names_every_study_and_what_is_missing(
    smoke: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("histograms", "fig3a"):
        shutil.copytree(smoke(name) / name, tmp_path / name)
    summary = tmp_path / "histograms" / "summary.json"
    described = json.loads(summary.read_text())
    missing = {**described, "points": {"total": 9, "done": 2, "missing": 7}}
    summary.write_text(json.dumps(missing))
    page = write_gallery(tmp_path, names()).read_text()
    assert page.index('<h2 id="fig3a">') < page.index('<h2 id="histograms">')
    assert "7 of 9 points are missing" in page
    assert page.count("<img") == 2
    assert "http" not in page.replace("http-equiv", "")


def test_a_finished_study_names_its_page_and_the_commit_of_its_code(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"results/trial\.md .*`git checkout [0-9a-f]{8}`"):
        run_study("trial", out=tmp_path)


def test_unknown_names_are_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="study: 'fig3' is unknown; did you mean 'fig3"):
        run_study("fig3", out=tmp_path)
    with pytest.raises(ArgumentError, match="scale: 'tiny' is unknown"):
        run_study("fig3a", out=tmp_path, scale="tiny")
    with pytest.raises(ArgumentError, match="seeds: expected at least 1, got 0"):
        run_study("fig3a", out=tmp_path, seeds=0)
    with pytest.raises(ArgumentError, match="no study there"):
        write_gallery(tmp_path)
