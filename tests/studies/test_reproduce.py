"""`hessblocks reproduce`: names, output, and what is said when something is wrong."""

import json
from pathlib import Path

import pytest

from hessblocks.cli import main
from hessblocks.studies import names
from hessblocks.studies.lock import held


def test_the_list_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(names()) <= {line.split()[0] for line in lines if line.strip()}


def test_a_study_ends_in_numbers_a_page_and_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "mlp,histograms", "--scale", "smoke", "--workers", "1", "--json"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary["studies"]) == ["mlp", "histograms"]
    assert summary["studies"]["mlp"]["measured"] == summary["studies"]["mlp"]["points"] == 300
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "mlp" / "figures" / "mlp.svg").exists()
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["studies"]["mlp"]["measured"] == 0


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["fig3c"], 2, "study: 'fig3c' is unknown; did you mean 'fig3"),
        (["fig3a", "--scale", "small"], 2, "--scale: 'small' is unknown"),
        (["fig3a", "--ray", "nowhere"], 2, "--ray: expected host:port"),
        (["fig3a", "--ray", "auto", "--workers", "2"], 2, "--ray: give either ray or workers"),
        ([","], 2, "expected a study, got ','"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    sentence: str,
) -> None:
    if "nowhere" in words:
        pytest.importorskip("ray")
    assert main(["reproduce", *words, "--out", str(tmp_path)]) == status
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert sentence in errors[0]


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(tmp_path):
        assert main(["reproduce", "mlp", "--scale", "smoke", "--out", str(tmp_path)]) == 1
    assert "--out: " in (said := capsys.readouterr().err)
    assert "in use by process" in said
