"""`hessblocks verify` and `hessblocks report`."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from hessblocks.cli.app import main
from hessblocks.theory.verification import cases
from hessblocks.theory.verification import sweep as verify

FEW = cases.CASES[:2]


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CASES", FEW)
    monkeypatch.setattr(
        verify.verify_closed_forms,
        "__kwdefaults__",
        {**verify.verify_closed_forms.__kwdefaults__, "cases": FEW},
    )
    commands = import_module("hessblocks.cli.commands.verify")
    models = commands._models()
    assert {"hessblocks, sas-p", "llama", "vit"} < set(models)
    monkeypatch.setattr(commands, "_models", lambda: {"llama": models["llama"]})


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
def test_every_block_is_shown_within_its_bound(
    dtype: str, bound: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["verify", "--json", "--dtype", dtype, "--device", "cpu", "--out", str(tmp_path)]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["passed"]
    models = {"llama"} if dtype == "float64" else set()
    assert {check["case"] for check in shown["checks"]} == {case.name for case in FEW} | models
    assert all(check["error"] <= check["bound"] == bound for check in shown["checks"])
    assert json.loads((tmp_path / "verify.json").read_text()) == shown


def test_an_error_above_the_bound_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(verify.BOUNDS, torch.float64, 1e-30)
    assert main(["verify", "--device", "cpu"]) == 1
    output = capsys.readouterr()
    assert "above 1e-30" in output.out
    assert "exceed their bound" in output.err


def test_an_unknown_dtype_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--dtype", "float16"]) == 2
    assert "--dtype" in capsys.readouterr().err


def test_a_report_needs_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
