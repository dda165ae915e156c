"""Folders of studies: what is not written into, and points of an earlier revision."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.cli import main
from hessblocks_studies.catalogue import find
from hessblocks_studies.engine.executors import InProcess
from tests.cli.helpers import Shell, sentence
from tests.pictures import empty_pictures


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessblocks_studies.engine.LocalProcesses", lambda workers: InProcess())


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one study, whose pictures are empty."""
    out = tmp_path_factory.mktemp("reproduced") / "out"
    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        patch.setattr("hessblocks_studies.engine.LocalProcesses", lambda workers: InProcess())
        assert (
            main(["reproduce", "mlp", "--scale", "smoke", "--seeds", "1", "--out", str(out)]) == 0
        )
    return out


@pytest.mark.slow
def test_nothing_is_written_into_a_saved_model(shell: Shell, tmp_path: Path) -> None:
    model = tmp_path / "out" / "model"
    assert shell.train(tmp_path / "out").status == 0
    before = sorted(model.iterdir())
    refused = shell("reproduce", "mlp", "--scale", "smoke", "--out", model)
    assert refused.status == 2
    assert f"--out: {model} is a saved model or a checkpoint" in sentence(refused)
    assert sorted(model.iterdir()) == before


@pytest.mark.slow
def test_points_of_an_earlier_revision_are_told_and_keep_their_tables(
    tmp_path: Path, reproduced: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(reproduced, tmp_path / "out"))
    tables = [out / "mlp" / name for name in ("results.csv", "summary.json", "figure.json")]
    whole = [table.read_bytes() for table in tables]
    now = find("mlp").revision
    raised = replace(find("mlp"), revision=now + 1)
    monkeypatch.setattr("hessblocks_studies.folders.find", lambda name: raised)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = shell("report", str(out))
    assert outcome.status == 0
    assert (
        f"is of revision {now} of mlp, this version measures revision {now + 1}" in outcome.errors
    )
    assert [table.read_bytes() for table in tables] == whole
