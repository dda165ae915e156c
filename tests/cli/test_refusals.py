"""What a user may type or hand over by mistake, and the sentence that answers it: never a
traceback."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
TINY = ["--sequences", "1", "--tokens", "4", "--data", "random"]


def saved(folder: Path) -> Path:
    hb.build("sas", depth=1, width=8, heads=2, vocab_size=11, context=8).save_pretrained(folder)
    return folder


def foreign(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"foo": 1}), encoding="utf-8")
    return folder


def cut(folder: Path) -> Path:
    weights = saved(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    return folder


REFUSED: dict[str, tuple[Callable[[Path], list[str]], int, str]] = {
    "a seed too large": (lambda p: ["train", "sas", "--seed", str(2**70)], 2, "--seed"),
    "a seed below 0": (lambda p: ["train", "sas", "--seed", "-1"], 2, "--seed"),
    "a seed too large for curvature": (
        lambda p: ["curvature", "preset:sas", "--seed", str(2**70)],
        2,
        "--seed",
    ),
    "a width beyond the memory": (
        lambda p: ["train", "pre-ln", "--width", "10000000"],
        2,
        "--width: pre-ln has .* parameters at these sizes, .* this machine has",
    ),
    "comparing widths beyond it": (
        lambda p: ["compare", "--presets", "pre-ln", "--width", "10000000"],
        2,
        "--width: pre-ln has",
    ),
    "a size for a saved model": (
        lambda p: ["curvature", str(saved(p / "m")), *TINY, "--depth", "3"],
        2,
        "--depth: a saved model has sizes of its own; leave the option out, or give preset:NAME",
    ),
    "a size of signal for a saved model": (
        lambda p: ["signal", str(saved(p / "m")), *TINY, "--width", "64"],
        2,
        "--width: a saved model has sizes of its own",
    ),
    "a foreign config.json": (
        lambda p: ["report", str(foreign(p / "r"))],
        1,
        "config.json.* expected `preset` or `presets`",
    ),
    "weights cut off": (
        lambda p: ["curvature", str(cut(p / "m")), *TINY],
        1,
        "the weights are damaged or cut off",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_answered_by_a_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, status, sentence = REFUSED[name]
    typed = words(tmp_path)
    out = [] if typed[0] == "report" else ["--out", str(tmp_path / "out")]
    assert main([*typed, *out]) == status
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_full_standard_output_is_reported() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        run = subprocess.run(
            [sys.executable, "-m", "hessblocks", "presets", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr.strip().startswith("hessblocks: standard output: No space left on device")
    assert "Traceback" not in run.stderr


def test_a_failed_allocation_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        )

    monkeypatch.setattr("hessblocks.training.model_without_weights", full)
    assert main(["train", "sas", "--out", str(tmp_path)]) == 1
    assert "hessblocks: out of memory; make the model" in capsys.readouterr().err


def test_another_error_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr("hessblocks.training.model_without_weights", broken)
    with pytest.raises(RuntimeError, match="something else"):
        main(["train", "sas", "--out", str(tmp_path)])
