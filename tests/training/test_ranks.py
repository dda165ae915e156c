"""Several processes, as torchrun starts them: the same numbers as one, written once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hessblocks.cli.app import main
from hessblocks.storage.lines import read_lines
from hessblocks.storage.manifest import check_manifest
from hessblocks.storage.tables import read_results
from tests.cli.helpers import CURVATURE, SIZES
from tests.data.helpers import write_code

WORDS = [*SIZES, *CURVATURE, "--steps", "8", "--batch-size", "4", "--evaluate-every", "4"]
OBSERVED = ["--gains-every", "4", "--curvature-every", "4"]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_code(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def hessblocks(
    cache: Path, *words: object, processes: int = 1
) -> tuple[list[int], list[str], list[str]]:
    """Run the command, with empty pictures, in so many processes; their exit statuses, outputs and
    errors."""
    return run_in(cache, "-m", "tests.pictures", *words, processes=processes)


def run_in(cache: Path, *words: object, processes: int) -> tuple[list[int], list[str], list[str]]:
    """The same of python with any arguments."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "HESSBLOCKS_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    torchrun = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    torchrun["MASTER_ADDR"] = "127.0.0.1"  # type: ignore[assignment]
    started = []
    for rank in range(processes):
        own = {name: str(value) for name, value in torchrun.items()} if processes > 1 else {}
        own |= {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        started.append(
            subprocess.Popen(
                [sys.executable, *map(str, words)],
                env=common | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [process.communicate(timeout=300) for process in started]
    return [p.returncode for p in started], [o for o, _ in ended], [e for _, e in ended]


def losses(out: Path) -> list[tuple[str, int, float]]:
    return [(m["split"], m["step"], m["loss"]) for m in read_lines(out / "metrics.jsonl")]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_two_processes_train_like_one_and_the_first_alone_writes(
    cache: Path, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "sas-p", "--data", code, *WORDS, *OBSERVED, "--out")
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(cache))
    assert main([*map(str, words), str(tmp_path / "one")]) == 0
    statuses, outputs, errors = hessblocks(cache, *words, tmp_path / "two", processes=2)
    assert statuses == [0, 0], errors
    assert "tokens/s" in outputs[0]
    assert outputs[1] == ""
    assert "hessblocks" not in errors[1]
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [line[:2] for line in one] == [line[:2] for line in two]
    assert [line[2] for line in two] == pytest.approx([line[2] for line in one], abs=1e-5)
    seen = [read_lines(tmp_path / name / "observations.jsonl") for name in ("one", "two")]
    assert [line["step"] for line in seen[0]] == [line["step"] for line in seen[1]]
    assert check_manifest(tmp_path / "two" / "model").state == "whole"
    assert len(read_results(tmp_path / "two" / "results.csv")) == 7


@pytest.mark.slow
def test_processes_leave_their_group_before_they_exit(tmp_path: Path) -> None:
    program = """
import atexit
import torch.distributed as dist
from hessblocks.training import ranks

atexit.register(lambda: print("left" if not dist.is_initialized() else "still in"))
ranks.join("cpu")
print(ranks.count())
"""
    statuses, outputs, errors = run_in(tmp_path, "-c", program, processes=2)
    assert (statuses, outputs) == ([0, 0], ["2\nleft\n"] * 2), errors


@pytest.mark.slow
def test_an_update_that_two_cannot_share_is_one_sentence(
    cache: Path, code: Path, tmp_path: Path
) -> None:
    words = ("train", "sas", "--data", code, *WORDS, "--batch-size", 3, "--out", tmp_path / "out")
    statuses, _, errors = hessblocks(cache, *words, processes=2)
    assert statuses == [2, 2]
    message = "--batch-size: 3 sequences cannot be shared out evenly over 2 processes with 1 pass"
    assert message in errors[0]
    assert "hessblocks:" not in errors[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_matched_comparison_in_two_processes(cache: Path, code: Path, tmp_path: Path) -> None:
    words = ("compare", "--presets", "pre-ln,sas-p", "--match", "time", "--data", code, *WORDS)
    statuses, _, errors = hessblocks(cache, *words, "--out", tmp_path / "out", processes=2)
    assert statuses == [0, 0], errors
    assert {row.preset for row in read_results(tmp_path / "out" / "results.csv")} == {
        "pre-ln",
        "sas-p",
    }
    assert (tmp_path / "out" / "budget.json").exists()


@pytest.mark.slow
def test_torchrun_itself(cache: Path, code: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--standalone", "-m", "hessblocks"]
    words = ["train", "sas", "--data", str(code), *WORDS, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "HESSBLOCKS_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, *words], env=environment, check=True, timeout=300)
    assert check_manifest(tmp_path / "out" / "model").state == "whole"
