"""Environment variables of torchrun and accelerate that ask for more than one process."""

from pathlib import Path

import pytest

from hessblocks.cli.app import main
from hessblocks.errors import ArgumentError
from hessblocks.training.preparation import check_environment
from tests.cli.helpers import SIZES
from tests.data.helpers import write_code

NAMES = ("WORLD_SIZE", "LOCAL_RANK", "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP")


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "1"),
        ("WORLD_SIZE", ""),
        ("LOCAL_RANK", "-1"),
        ("ACCELERATE_USE_FSDP", "false"),
        ("ACCELERATE_USE_DEEPSPEED", "0"),
        ("ACCELERATE_USE_CPU", "true"),
        ("ACCELERATE_MIXED_PRECISION", "no"),
    ],
)
def test_a_variable_that_means_one_process_is_accepted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    check_environment("cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "4"),
        ("WORLD_SIZE", "two"),
        ("LOCAL_RANK", "0"),
        ("ACCELERATE_USE_FSDP", "True"),
        ("ACCELERATE_USE_DEEPSPEED", "1"),
        ("ACCELERATE_USE_CPU", "yes"),
    ],
)
def test_a_variable_that_means_several_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"^{name}={value} in the environment"):
        check_environment("cuda")


@pytest.mark.usefixtures("blank")
def test_a_command_under_torchrun_is_refused_before_it_waits_for_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    data, out = str(write_code(tmp_path)), str(tmp_path / "out")
    assert main(["train", "sas", "--data", data, *map(str, SIZES), "--out", out]) == 2
    assert "WORLD_SIZE=2 in the environment" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
