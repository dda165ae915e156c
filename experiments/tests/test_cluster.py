"""The Ray executor, on a cluster of this machine that the test starts itself."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiments.tests import toy
from hessblocks.cli.app import main
from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies.engine import read

ROOT = Path(__file__).parents[2]
LONG = pytest.mark.slow
"""A cluster takes ten seconds to start and to end."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def started() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A cluster of this machine: its address and its head."""
    pytest.importorskip("ray")
    port = free_port()
    program = Path(sys.executable).with_name("ray")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "RAY_worker_niceness": "0"}
    options = ["--num-cpus=2", "--num-gpus=0", "--include-dashboard=false", f"--port={port}"]
    start = subprocess.Popen(
        [program, "start", "--head", "--block", "--disable-usage-stats", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert start.stdout is not None
    seen = ""
    while "Ray runtime started" not in seen:
        line = start.stdout.readline()
        assert line, f"Ray did not start: {seen}"
        seen += line
    try:
        yield f"127.0.0.1:{port}", start
    finally:
        start.terminate()
        start.wait(30)
        start.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with started() as (address, _):
        yield address


def kill_a_worker(seen: list[int]) -> None:
    """SIGKILL the first process that Ray measures a point in."""
    deadline = time.monotonic() + 120
    while not seen and time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline"]):
            if "ray::PoolActor.run_batch" in " ".join(process.info["cmdline"] or ()):
                process.kill()
                seen.append(process.pid)
                return
        time.sleep(0.02)


@LONG
def test_a_worker_killed_from_outside_changes_no_number(tmp_path: Path, cluster: str) -> None:
    points = [toy.ToySettings(number=number, pause=0.7) for number in range(4)]
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(killed,))
    killer.start()
    there = toy.run(tmp_path / "there", points, ray=cluster)
    killer.join()
    assert len(killed) == 1
    assert 1 <= there.retried <= 2, "the other worker may have been at a point too"
    assert len(lines(tmp_path / "there" / "points.jsonl")) == 4
    assert there.rows == toy.run(tmp_path / "here", points).rows


@LONG
def test_the_command_on_a_cluster_gives_what_it_gives_here(
    tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "mlp", "--scale", "smoke", "--seeds", "1", "--json"]
    assert main([*command, "--ray", cluster, "--out", str(tmp_path / "there")]) == 0
    measured = json.loads(capsys.readouterr().out)["studies"]["mlp"]["measured"]
    assert main([*command, "--workers", "1", "--out", str(tmp_path / "here")]) == 0
    tables = [
        (tmp_path / where / "mlp" / "results.csv").read_bytes() for where in ("here", "there")
    ]
    assert tables[0] == tables[1]
    assert len(lines(tmp_path / "there" / "mlp" / "points.jsonl")) == measured > 0


@LONG
def test_the_cluster_gives_what_this_process_gives_though_a_worker_dies(
    tmp_path: Path, cluster: str
) -> None:
    dying = toy.ToySettings(number=9, die=str(tmp_path / "mark"))
    points = [dying, *(toy.ToySettings(number=number, pause=0.7) for number in range(4))]
    there = toy.run(tmp_path / "there", points, ray=cluster)
    assert 1 <= there.retried <= 2, "the other worker may have been at a point too"
    assert there.rows == toy.run(tmp_path / "here", points).rows


@LONG
def test_a_point_that_no_machine_can_take_is_refused(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(RunError, match="no machine of the cluster has the 1 cores and 3"):
        toy.run(tmp_path, [toy.ToySettings(number=1)], ray=cluster, gpus=3)


def test_an_address_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=r"ray: nothing answers at '127.0.0.1:\d+' .*ray start"):
        toy.run(tmp_path, ray=f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize("address", ["nonsense", "ray://", "host:port"])
def test_what_is_not_an_address_is_refused(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ArgumentError, match="ray: expected host:port"):
        toy.run(tmp_path, ray=address)


@LONG
def test_a_cluster_that_goes_away_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    points = [toy.ToySettings(number=number, pause=0.1 + 10 * (number > 1)) for number in range(6)]
    with started() as (address, head):
        stop = threading.Thread(target=stop_when_stored, args=(tmp_path, head))
        stop.start()
        with pytest.raises(RunError, match=f"ray: nothing answers at '{address}'"):
            toy.run(tmp_path, points, ray=address)
        stop.join()
    stored = len(lines(tmp_path / "points.jsonl"))
    assert 1 <= stored < 6


def stop_when_stored(folder: Path, head: subprocess.Popen[str]) -> None:
    """Kill the cluster as soon as a point is there; asked to end, Ray ends its points first."""
    deadline = time.monotonic() + 120
    while not len(read(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in [*psutil.Process(head.pid).children(recursive=True), head]:
        process.kill()
