"""Options from a file: the same names, and what is typed goes first."""

import json
from pathlib import Path

import pytest

from hessblocks.errors import ArgumentError
from hessblocks.settings import ComparisonSettings, CurvatureInspection, TrainingSettings
from tests.cli.helpers import Shell


def presets(shell: Shell, file: Path, text: str, *words: object) -> dict:
    file.write_text(text)
    return json.loads(shell("presets", "--config", file, "--json", *words).output)["presets"]


def test_a_file_gives_what_was_not_typed(shell: Shell, tmp_path: Path) -> None:
    file, sizes = tmp_path / "o.toml", ("--depth", 2, "--width", 32, "--mlp-width", 48)
    written = "depth = 2\nwidth = 32\nmlp-width = 48"
    typed = presets(shell, file, "", *sizes)
    assert presets(shell, file, written) == typed
    assert presets(shell, file, written.replace("-", "_")) == typed
    assert presets(shell, file, "depth = 7\nwidth = 32\nmlp-width = 48", *sizes[:2]) == typed


@pytest.mark.slow
def test_lists_and_switches_in_a_file(shell: Shell, tmp_path: Path) -> None:
    file, out = tmp_path / "o.toml", tmp_path / "out"
    file.write_text(
        'presets = ["sas", "sas-p"]\nbf16 = true\ncurvature-tokens = 4\noptimiser = "sgd"\n'
        'set = ["attention.query.init=zeros", "mlp.activation=gelu"]\nlearning-rate = 0.01\n'
    )
    words = ("--presets", "sas", "--config", file, "--depth", 1, "--steps", 4)
    assert shell.compare(out, "--config", file, *words).status == 0
    config = json.loads((out / "config.json").read_text())
    assert config["presets"] == ["sas"]
    assert config["model"]["slots"] == ["attention.query.init=zeros", "mlp.activation=gelu"]
    chosen = {name: config["training"][name] for name in ("bf16", "optimiser", "learning_rate")}
    assert chosen == {"bf16": True, "optimiser": "sgd", "learning_rate": 0.01}


def test_a_list_of_presets_in_a_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text('presets = ["sas", "nope"]')
    outcome = shell("compare", "--config", tmp_path / "o.toml")
    assert "--presets: 'nope' is unknown" in outcome.errors


def test_a_table_in_a_file_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("[presets]\ndepth = 2")
    outcome = shell("presets", "--config", tmp_path / "o.toml")
    assert outcome.status == 2
    assert "o.toml has 'presets', which is not an option" in outcome.errors


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        (TrainingSettings, {"optimiser": "adma"}, "--optimiser: 'adma' is unknown; did you mean"),
        (TrainingSettings, {"schedule": "const"}, "--schedule: 'const' is unknown"),
        (CurvatureInspection, {"level": "layer"}, "--level: 'layer' is unknown"),
        (ComparisonSettings, {"presets": ["sas"], "report_to": "x"}, "--report-to: 'x' is unknown"),
    ],
)
def test_unknown_names_are_refused_from_python(settings: type, given: dict, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        settings(**given)
