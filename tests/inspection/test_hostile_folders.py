"""A folder that somebody else made: nothing in it is executed, and the refusal is a sentence."""

import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import hessblocks as hb
from hessblocks.cli import main

TRAP = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import GPT2Config as Evil, GPT2LMHeadModel as EvilModel, GPT2Tokenizer as EvilTokenizer
"""
COMMANDS = {
    "curvature": ["--probes", "4", "--sequences", "1", "--tokens", "4", "--data", "random"],
    "signal": ["--sequences", "1", "--tokens", "4", "--data", "random"],
}


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8).save_pretrained(
        tmp_path / "model"
    )
    return tmp_path / "model"


def run(
    command: str, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch, answer: str = "yes\n"
) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer * 20))
    return main([command, str(folder), *COMMANDS[command], "--out", str(out)])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_harmless_folder_is_measured(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(command, folder, tmp_path / "out", monkeypatch) == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("known", [False, True])
def test_code_in_a_folder_is_not_executed(
    command: str,
    known: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    marker = tmp_path / "executed"
    (folder / "evil.py").write_text(TRAP.format(marker=str(marker)), encoding="utf-8")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.EvilModel",
        "AutoTokenizer": ["evil.EvilTokenizer", None],
    }
    if not known:
        config["model_type"] = "evil"
    path.write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    status = run(command, folder, tmp_path / "out", monkeypatch)
    assert not marker.exists()
    assert "Traceback" not in capsys.readouterr().err
    assert (status == 0) == known


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("beside", [False, True])
def test_pickled_weights_are_not_opened(
    command: str,
    beside: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Alone they are refused; beside safetensors they are left alone."""
    marker = tmp_path / "executed"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    if not beside:
        (folder / "model.safetensors").unlink()
    status = run(command, folder, tmp_path / "out", monkeypatch)
    said = capsys.readouterr().err
    assert not marker.exists()
    assert "Traceback" not in said
    assert (status == 0) == beside
    assert beside or "safetensors" in said


def test_the_traps_work(folder: Path, tmp_path: Path) -> None:
    """What the tests above plant would be seen."""
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()
    marker.unlink()
    exec(compile(TRAP.format(marker=str(marker)), "evil.py", "exec"), {})
    assert marker.exists()
