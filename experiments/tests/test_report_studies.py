"""`hessblocks report` on studies: whole, partial, killed, or in use by another command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.cli.app import main
from hessblocks.storage.manifest import held
from hessblocks_studies.engine import POINTS
from hessblocks_studies.gallery import load_section
from hessblocks_studies.runner import run_studies

pytestmark = pytest.mark.usefixtures("blank")

STUDIES = ("mlp", "histograms", "fig3b")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    run_studies(STUDIES, out=folder, scale="smoke", seeds=1)
    return folder


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def report(*folders: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Pages and missing lines of `hessblocks report --json`."""
    assert main(["report", *map(str, folders), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return said["reports"], said["missing"]


def cut(study: Path, kept: int) -> int:
    """Leave a study as SIGKILL would: some points, torn last line, files of the start; the loss."""
    lines = (study / POINTS).read_bytes().splitlines(keepends=True)
    (study / POINTS).write_bytes(b"".join(lines[:kept]))
    return len(lines) - kept


@pytest.mark.slow
def test_a_whole_folder_lacks_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(out, capsys=capsys) == ([str(out / "report.html")], [])
    page = (out / "report.html").read_text()
    assert "missing" not in page.partition("<body>")[2]
    assert "not begun" not in page


def test_what_is_missing_is_counted_from_the_points_that_are_there(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = cut(out / "mlp", 10)
    shutil.rmtree(out / "histograms")
    _, missing = report(out, capsys=capsys)
    assert missing == [f"mlp: {lost} of {lost + 10} points", "histograms: not begun"]
    page = (out / "report.html").read_text()
    assert f"{lost} of {lost + 10} points are missing" in page
    assert "hessblocks reproduce mlp --scale smoke" in page
    assert "hessblocks reproduce histograms --scale smoke" in page
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [f"missing {line}" for line in missing]


def test_points_that_came_after_the_last_files_are_counted(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (out / "mlp" / POINTS).read_bytes()
    cut(out / "mlp", 3)
    report(out, capsys=capsys)
    before = (out / "mlp" / "results.csv").read_bytes()
    (out / "mlp" / POINTS).write_bytes(lines)  # as a command leaves it that was killed at the end
    assert report(out, capsys=capsys)[1] == []
    assert len((out / "mlp" / "results.csv").read_bytes()) > len(before)


def test_a_study_by_itself_has_its_page(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages, missing = report(out / "mlp", out / "fig3b", capsys=capsys)
    assert pages == [str(out / "mlp" / "report.html"), str(out / "fig3b" / "report.html")]
    assert missing == []
    assert "histograms" not in (out / "mlp" / "report.html").read_text()


def test_a_study_without_a_point_is_missing_whole(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = cut(out / "fig3b", 0)
    assert report(out, capsys=capsys)[1] == [f"fig3b: {lost} of {lost} points"]


@pytest.mark.parametrize("inside", ["", "mlp"])
def test_a_folder_in_use_is_refused(
    out: Path, inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (out / "mlp" / "summary.json").stat().st_mtime_ns
    with held(out / inside):
        assert main(["report", str(out / inside)]) == 1
    assert "in use by process" in capsys.readouterr().err
    assert (out / "mlp" / "summary.json").stat().st_mtime_ns == before
    assert not (out / "report.html").exists()


@pytest.mark.parametrize("file", ["config.json", "mlp/config.json"])
def test_a_damaged_file_is_one_sentence(
    out: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / file).write_text('{"study":')
    assert main(["report", str(out)]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert file in said
    assert "damaged; run the same `hessblocks reproduce` again" in said
    (out / file).write_text("{}")


def test_settings_and_differences_are_on_the_page(out: Path) -> None:
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "sigma 0.01 to 10 (20 values)" in page
    assert "Settings: " in page


def test_of_many_names_the_first_few_are_reported(out: Path) -> None:
    section = load_section(out / "mlp")
    settings = {"rate": [0.1, 0.2], "names": list("abcdefghijklm"), "few": list("abcde")}
    told = replace(section, summary={**section.summary, "settings": settings}).settings
    assert told == "rate 0.1, 0.2; names a, b, c, d and 9 more; few a, b, c, d, e"
