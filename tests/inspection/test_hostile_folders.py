"""A folder that somebody else made: nothing in it is executed, and the refusal is a sentence."""

import io
import json
import pickle
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.cli import main
from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForSequenceClassification
from tests.cli.helpers import CURVATURE, SIZES
from tests.data.helpers import write_code
from tests.report.few_pictures import draw_no_curvature

TRAP = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import GPT2Config as Evil, GPT2LMHeadModel as EvilModel
from transformers import GPT2Tokenizer as EvilTokenizer
"""
pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
]
COMMANDS = {
    "curvature": [
        *("--probes", "4", "--sequences", "1", "--tokens", "4", "--data", "random"),
        *("--parts", "outer", "--eigenvalues", "0"),
    ],
    "signal": ["--sequences", "1", "--tokens", "4", "--data", "random"],
}

FEW = ["--sequences", "1", "--tokens", "4"]
TINY = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 11, "context": 8}


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture(autouse=True)
def _no_curvature_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose pictures nobody looks at."""
    draw_no_curvature(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hb.build("pre-ln", **TINY).save_pretrained(tmp_path / "model")
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
    if not beside:  # nor harmless ones
        (folder / "seal.json").unlink(missing_ok=True)
        torch.save(hb.build("pre-ln", **TINY).state_dict(), folder / "pytorch_model.bin")
        with pytest.raises((hb.RunError, hb.ArgumentError), match="safetensors"):
            hb.load(folder)


def test_the_traps_work(folder: Path, tmp_path: Path) -> None:
    """What the tests above plant would be seen."""
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()
    marker.unlink()
    exec(compile(TRAP.format(marker=str(marker)), "evil.py", "exec"), {})
    assert marker.exists()


ELSEWHERE = {
    "kernels": ({"attn_implementation": "kernels-community/flash-attn"}, "code from elsewhere"),
    "experts": ({"experts_implementation": "some/kernel"}, "code from elsewhere"),
    "quantised": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "cannot be loaded",
    ),
    "number": ({"n_layer": "1; rm"}, "no model that transformers knows"),
    "type": ({"dtype": "evil"}, "no model that transformers knows"),
}


@pytest.mark.parametrize("edit", ELSEWHERE)
def test_a_configuration_that_needs_something_else_is_refused_in_a_sentence(
    edit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = gpt2(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    edited, said = ELSEWHERE[edit]
    (folder / "config.json").write_text(json.dumps(config | edited), encoding="utf-8")
    assert run("signal", folder, tmp_path / "out", monkeypatch) != 0
    assert said in capsys.readouterr().err


def test_an_adapter_is_not_measured_without_the_model_that_it_names(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "some/other", "peft_type": "LORA"}), encoding="utf-8"
    )
    assert run("curvature", folder, tmp_path / "out", monkeypatch) == 2
    assert "holds an adapter of another model" in capsys.readouterr().err


def gpt2(folder: Path) -> Path:
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=8, **ends)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_pickled_weights_are_not_opened_where_a_model_class_loads_them(
    folder: Path, tmp_path: Path
) -> None:
    """As fine-tuning does."""
    marker = tmp_path / "executed"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        HessblocksForSequenceClassification.from_pretrained(folder, num_labels=2)
    assert not marker.exists()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Attempts to reach a network, in a process that nobody told to stay offline."""
    from huggingface_hub.utils import _detect_agent

    found: list[str] = []

    def refuse(name: str) -> Any:
        def refused(*given: object, **_: object) -> None:
            found.append(f"{name} {given}")
            raise OSError("no network")

        return refused

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "agents"))
    monkeypatch.setattr(_detect_agent, "_registry", None)  # what it found is kept in the process
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse("connect"))
    monkeypatch.setattr(socket, "create_connection", refuse("create_connection"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse("getaddrinfo"))
    return found


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["gpt2", "some/name"])
def test_a_name_that_is_not_in_the_cache_is_not_asked_for_on_the_network(
    command: str,
    name: str,
    attempts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([command, name, *COMMANDS[command], "--out", str(tmp_path / "out")]) == 2
    assert attempts == []
    assert constants.HF_HUB_OFFLINE is False
    assert (
        f"MODEL: {name!r} is not a folder, and no model of that name is in the local Hugging Face "
        "cache; run "
        f"`hf download {name}`" in capsys.readouterr().err
    )


@pytest.mark.parametrize("kept", ["model.safetensors", "pytorch_model.bin"])
def test_a_name_in_the_cache_is_read_without_the_network(
    kept: str,
    attempts: list[str],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its tokeniser; for pickled weights nobody is asked to turn them into safetensors."""
    place, revision = tmp_path / "hub" / "models--some--name", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision, encoding="utf-8")
    shutil.copytree(folder, place / "snapshots" / revision)
    weights = place / "snapshots" / revision / "model.safetensors"
    weights.rename(weights.with_name(kept))
    status = main(["signal", "some/name", *COMMANDS["signal"], "--out", str(tmp_path / "out")])
    assert attempts == []
    assert (status == 0) == (kept == "model.safetensors")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_training_and_reports_need_no_network(
    attempts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hessblocks.cli.commands.work.write_report", lambda out: out)  # below
    code = write_code(tmp_path / "code")
    sizes = [*SIZES, "--data", str(code), "--steps", "2", "--batch-size", "2"]
    assert main(["train", "sas", *sizes, "--out", str(tmp_path / "one")]) == 0
    few = ["--presets", "sas,pre-ln", *CURVATURE, *sizes, "--depth", "1"]
    assert main(["compare", *few, "--out", str(tmp_path / "two")]) == 0
    assert main(["report", str(tmp_path / "two")]) == 0
    assert (
        main(
            [
                "signal",
                str(tmp_path / "one"),
                "--data",
                str(code),
                *FEW,
                "--out",
                str(tmp_path / "s"),
            ]
        )
        == 0
    )
    assert attempts == []


def test_a_run_folder_with_a_link_is_not_measured(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model of a run; a model folder of the Hugging Face cache is made of links."""
    linked = tmp_path / "run"
    linked.mkdir()
    (linked / "model").symlink_to(folder)
    assert run("signal", linked, tmp_path / "out", monkeypatch) == 2
    assert "model is a link" in capsys.readouterr().err
    (tmp_path / "snapshot").mkdir()
    for path in folder.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert run("signal", tmp_path / "snapshot", tmp_path / "out", monkeypatch) == 0


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        (hb.measure_signal, "config.json"),
        (hb.measure_signal, "results.csv"),
        (hb.measure_curvature, "config.json"),
        (hb.measure_curvature, "points.jsonl"),
        (hb.measure_curvature, "figures"),
    ],
)
def test_no_link_in_the_folder_of_results_is_followed(
    measure: Any, name: str, folder: Path, tmp_path: Path
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    few: dict[str, Any] = {"data": "random", "sequences": 1, "tokens": 4, "out": out}
    if measure is hb.measure_curvature:
        few |= {"parts": "full", "groups": "*.key", "eigenvalues": 0}
    measure(folder, **few)
    (out / name).rename(outside) if (out / name).exists() else outside.mkdir()
    (out / name).symlink_to(outside)
    before = {path: path.stat().st_mtime_ns for path in [outside, *outside.rglob("*")]}
    with pytest.raises(ArgumentError, match=f"{name} is a link"):
        measure(folder, **few)
    assert {path: path.stat().st_mtime_ns for path in [outside, *outside.rglob("*")]} == before


def test_a_name_of_a_group_does_not_leave_the_folder(tmp_path: Path) -> None:
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8)
    model.add_module(f"{tmp_path}/outside", torch.nn.Linear(1, 1))
    batch = {"input_ids": torch.arange(8).reshape(2, 4)}
    few = {"probes": 4, "parts": "outer", "eigenvalues": 0}
    hb.measure_curvature(model, batch, out=tmp_path / "out", level="tensor", **few)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert f"{tmp_path}/outside.weight" in (tmp_path / "out" / "points.jsonl").read_text()
