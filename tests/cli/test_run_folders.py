"""What the commands say of folders and files that are not theirs, or that were changed."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hessblocks.errors import ArgumentError
from hessblocks.report import PAGES
from hessblocks.storage.folder_results import load_results
from hessblocks.storage.store import POINTS
from tests.cli.helpers import SIZES, Shell, sentence
from tests.cli.test_curvature import SMALL as SAMPLE
from tests.cli.test_curvature import preset
from tests.cli.test_signal import SMALL

TABLES = ("map.csv", "spectra.csv")
SLOW = pytest.mark.slow
"""A second for each table, all of which are written alike."""
TINY = ["--depth", "1", "--width", "8", "--heads", "2"]
FEW = ["--groups", "layers.1.attention.*", "--parts", "full", "--map", "--spectrum"]
pytestmark = [
    pytest.mark.filterwarnings("default::hessblocks.curvature.AttentionBackendWarning"),
    pytest.mark.filterwarnings("default::hessblocks.storage.DamageWarning"),
]


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessblocks.report.write_report", lambda out: out / "report.html")
    page = replace(PAGES["curvature"], write=lambda out: out / "report.html")
    monkeypatch.setitem(PAGES, "curvature", page)
    monkeypatch.setattr("hessblocks.report.write_signal_figures", lambda out: [])


def test_nothing_is_written_into_a_saved_model(shell: Shell, trained: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "out"))
    before = sorted((out / "model").iterdir())
    page = shell("report", out / "model")
    assert (page.status, sentence(page)) == (
        2,
        f"hessblocks: DIR: {out / 'model'} is a saved model or a checkpoint, which has no page; "
        "give the folder of its run.",
    )
    for words in (
        ("train", "sas", "--data", shell.code, *SIZES, "--out"),
        ("curvature", "preset:sas", "--data", "random", *SAMPLE, *TINY, "--out"),
    ):
        refused = shell(*words, out / "model")
        assert refused.status == 2
        assert f"--out: {out / 'model'} is a saved model or a checkpoint" in sentence(refused)
    assert sorted((out / "model").iterdir()) == before


def test_a_saved_model_has_no_page(trained: Path) -> None:
    with pytest.raises(ArgumentError, match=r"model is a saved model, which has no page"):
        load_results(trained / "model")  # as the page begins


def test_signal_has_figures_and_no_page(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert shell("signal", "preset:sas", *SMALL, "--out", out).status == 0
    with pytest.raises(ArgumentError) as caught:
        load_results(out)  # as the page begins
    assert str(caught.value) == (
        f"DIR: {out} is of `hessblocks signal`, which has no page; its figures lie in figures/, "
        "and the same command makes them anew."
    )


def test_the_damaged_configuration_of_a_run_is_not_taken_for_a_study(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"command": "train", ')
    outcome = shell("report", tmp_path)
    assert outcome.status == 1
    assert f"{tmp_path / 'config.json'}, line 1: not JSON" in sentence(outcome)
    assert "reproduce" not in sentence(outcome)


def test_of_a_folder_of_runs_the_runs_are_named(shell: Shell, tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"command": "train", "preset": "sas"}')
    refused = shell("report", tmp_path)
    assert refused.status == 2
    assert sentence(refused).endswith(f"--out; such are {tmp_path / 'a'}, {tmp_path / 'b'}")


def test_what_is_not_a_run_is_refused(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("report", tmp_path)
    assert outcome.status == 2
    assert sentence(outcome).startswith(f"hessblocks: DIR: {tmp_path} has no config.json")


def test_a_model_that_was_changed_after_training_is_reported_where_it_is_measured(
    shell: Shell, trained: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "out"))
    sample = ("--data", "random", *SAMPLE, "--parts", "full", "--groups", "layers.1.attention.key")
    assert "warning: MODEL" not in shell("signal", out, *sample[:6], "--out", tmp_path / "a").errors
    path = out / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    words = (
        f"warning: MODEL: {out} has another model.safetensors than was written; it is taken as "
        "it is now"
    )
    assert words in shell("signal", out, *sample[:6], "--out", tmp_path / "b").errors
    assert words in shell("curvature", out, *sample, "--out", tmp_path / "c").errors


def lose(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).unlink()


def garble(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).write_text("a,b\n1\n")


@pytest.mark.parametrize(
    "name", ["results.csv", *(pytest.param(name, marks=SLOW) for name in TABLES), POINTS]
)
@pytest.mark.parametrize("spoil", [lose, garble])
def test_files_of_curvature_that_are_lost_or_cannot_be_read_are_written_anew(
    shell: Shell, measured: Path, tmp_path: Path, spoil: Callable[..., Any], name: str
) -> None:
    out = Path(shutil.copytree(measured, tmp_path / "out"))
    spoil(name)(out)
    with warnings.catch_warnings():
        warnings.filterwarnings("default", ".*damaged line")  # shown, as a user sees it
        outcome = preset(shell, out, *FEW)
    assert outcome.status == 0
    kept = "2 damaged line(s) kept aside in points.damaged; what they held is measured again"
    assert (kept in outcome.errors) == ((spoil, name) == (garble, POINTS))
    assert (out / name).read_bytes() == (measured / name).read_bytes()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def trained(shell: Shell, places: Path) -> Path:
    """A finished run of training, made once."""
    if not (places / "trained").exists():
        assert shell.train(places / "trained", "--steps", 4).status == 0
    return places / "trained"


@pytest.fixture
def measured(shell: Shell, places: Path) -> Path:
    """A finished curvature run, made once."""
    if not (places / "out").exists():
        assert preset(shell, places / "out", *FEW).status == 0
    return places / "out"


def test_a_norm_that_is_not_finite_is_reported_and_the_others_stay(
    shell: Shell, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hessblocks.storage import load_curvature

    out = Path(shutil.copytree(measured, tmp_path / "out"))
    lines = (out / "results.csv").read_text().splitlines(keepends=True)
    cells = lines[1].split(",")
    cells[8] = "nan"
    (out / "results.csv").write_text("".join([lines[0], ",".join(cells), *lines[2:]]))
    with pytest.warns(UserWarning, match=f"a norm of {cells[5]} is not a number; it is left out"):
        results = load_curvature(out)
    assert results.missing == (cells[5],)
    assert len(results.norms) == 3


def test_a_run_of_curvature_goes_on_with_the_same_tokens_only(
    shell: Shell, measured: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(measured, tmp_path / "out"))
    config = json.loads((out / "config.json").read_text())
    assert len(config["data"]["fingerprint"]) == 64
    (out / "config.json").write_text(
        json.dumps(config | {"data": config["data"] | {"fingerprint": "0"}})
    )
    outcome = preset(shell, out, *FEW)
    assert outcome.status == 2
    assert "data.fingerprint is" in sentence(outcome)
