"""`hessblocks check` of folders of studies."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.tests.reproducing import without_imports
from hessblocks.cli import main
from hessblocks_studies.catalogue import find
from tests.cli.helpers import Shell, sentence
from tests.cli.test_check import said
from tests.pictures import empty_pictures


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    without_imports(monkeypatch)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one study, whose pictures are empty."""
    out = tmp_path_factory.mktemp("reproduced") / "out"
    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        without_imports(patch)
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


def test_studies_are_checked_by_their_points(
    tmp_path: Path, reproduced: Path, capsys: pytest.CaptureFixture[str], shell: Shell
) -> None:
    out = Path(shutil.copytree(reproduced, tmp_path / "out"))
    assert said(shell, out) == (0, {})
    assert said(shell, out / "mlp") == (0, {})
    store, results = out / "mlp" / "points.jsonl", out / "mlp" / "results.csv"
    whole = store.read_bytes(), results.read_bytes()
    results.write_bytes(whole[1].replace(b"mlp", b"mlq", 1))
    assert said(shell, out) == (1, {"mlp/results.csv": "edited"})
    results.write_bytes(whole[1])
    store.write_bytes(whole[0].replace(b'"seconds":', b'"second":', 1))
    assert said(shell, out)[1]["mlp/points.jsonl"] == "edited"
    store.write_bytes(b"".join(whole[0].splitlines(keepends=True)[1:]))
    assert said(shell, out)[1]["mlp/points.jsonl"] == "missing"
    store.unlink()
    results.unlink()
    assert said(shell, out)[1] == {
        "mlp/points.jsonl": "missing",
        "mlp/results.csv": "missing",
        "mlp/summary.json": "edited",
        "mlp/figure.json": "edited",
    }


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
    status, found = said(shell, out)
    assert (status, found) == (1, {"mlp/points.jsonl": "foreign"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = shell("report", str(out))
    assert outcome.status == 0
    assert (
        f"is of revision {now} of mlp, this version measures revision {now + 1}" in outcome.errors
    )
    assert [table.read_bytes() for table in tables] == whole


def test_what_is_made_of_points_and_what_was_asked_for_are_checked(
    tmp_path: Path, reproduced: Path, shell: Shell
) -> None:
    out = Path(shutil.copytree(reproduced, tmp_path / "out"))
    for name, state in (("summary.json", "edited"), ("figure.json", "edited")):
        path = out / "mlp" / name
        whole = path.read_bytes()
        path.write_text("{}")
        assert said(shell, out) == (1, {f"mlp/{name}": state})
        path.write_bytes(whole.replace(b"0.", b"0.5", 1))
        assert said(shell, out / "mlp") == (1, {name: state})
        path.write_bytes(whole)
    config = json.loads((out / "config.json").read_text())
    config["studies"]["mlp"]["scale"] = "laptop"
    (out / "config.json").write_text(json.dumps(config))
    assert said(shell, out) == (1, {"mlp/config.json": "foreign"})
    shutil.rmtree(out / "mlp")
    assert said(shell, out) == (1, {"mlp": "missing"})
    (out / "config.json").write_text('{"command": "reproduce", "studies": {}}')
    assert said(shell, out) == (1, {})
