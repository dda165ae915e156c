"""`hessblocks reproduce`: names, output, and what is said when something is wrong."""

import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hessblocks_studies as studies
from experiments.tests.reproducing import without_imports
from hessblocks.cli.app import main
from hessblocks.errors import RunError
from hessblocks.storage.config import EnvironmentWarning
from hessblocks.storage.manifest import held
from hessblocks.storage.store import DAMAGED, POINTS
from hessblocks_studies import engine, reproduce
from hessblocks_studies.catalogue import find, names
from hessblocks_studies.engine import Executor
from tests.pictures import empty_pictures

pytestmark = pytest.mark.usefixtures("blank")


@pytest.fixture(scope="module", autouse=True)
def in_this_process() -> Iterator[None]:
    """No workers, whose start takes most of the time of a small study; one test has them."""
    with pytest.MonkeyPatch.context() as patch:
        without_imports(patch)
        yield


def test_the_list_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(names()) <= {line.split()[0] for line in lines if line.strip()}


def test_a_study_of_many_hours_says_its_cost_before_it_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    (ladder,) = (study for study in listed if study["name"] == "ladder")
    assert "about 16 hours of one H200" in ladder["costs"]["paper"]
    reproduce._say_costs(["ladder", "mlp"], "paper")
    said = capsys.readouterr().err
    assert said == f"ladder: {ladder['costs']['paper']}, resumed where it was stopped\n"
    reproduce._say_costs(["ladder", "mlp"], "smoke")
    assert capsys.readouterr().err == ""


def test_a_study_ends_in_numbers_a_page_and_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    studies_end_in_numbers(tmp_path, capsys, monkeypatch)


@pytest.mark.slow
def test_studies_end_in_numbers_of_a_worker_that_is_a_new_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user has it."""
    monkeypatch.setattr(engine, "Executor", Executor)
    studies_end_in_numbers(tmp_path, capsys, monkeypatch)


def studies_end_in_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure two studies with a worker, and find them measured."""
    command = [
        "reproduce",
        "mlp,histograms",
        "--scale",
        "smoke",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--json",
    ]
    assert main([*command, "--out", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary["studies"]) == ["mlp", "histograms"]
    assert summary["studies"]["mlp"]["measured"] == summary["studies"]["mlp"]["points"] == 200
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "mlp" / "figures" / "mlp.svg").exists()
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["studies"]["mlp"]["measured"] == 0


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["fig3c"], 2, "study: 'fig3c' is unknown; did you mean 'fig3"),
        (["fig3a", "--scale", "small"], 2, 'Invalid value "small" for --scale'),
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


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"command": "train", "preset": "sas"}, "holds what another command wrote"),
        ({"command": "reproduce", "study": "mlp"}, "is the folder of the study mlp alone"),
        ([], "holds what another command wrote"),
    ],
)
def test_the_folder_of_something_else_keeps_its_config(
    config: object, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert main(["reproduce", "sigma-linear", "--scale", "smoke", "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
    assert json.loads(path.read_text()) == config


@pytest.mark.filterwarnings("default:.*is damaged and written anew")  # shown, as a user sees it
def test_a_damaged_config_of_a_folder_of_studies_is_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "mlp", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path)]
    (tmp_path / "config.json").write_text('{"studies": {"ml')
    assert main(command) == 0
    assert "config.json is damaged and written anew" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "config.json").read_text())["studies"]) == ["mlp"]


def test_what_the_points_were_begun_with_stays_written(tmp_path: Path) -> None:
    command = ["reproduce", "mlp", "--scale", "smoke", "--out", str(tmp_path), "--seeds"]
    assert main([*command, "1"]) == 0
    path = tmp_path / "mlp" / "environment.json"
    elsewhere = {**json.loads(path.read_text()), "processor": "another"}
    path.write_text(json.dumps(elsewhere))
    assert main([*command, "1"]) == 0  # nothing is missing, nothing is said
    with pytest.warns(EnvironmentWarning, match="mlp was begun in another environment .*'another'"):
        studies.run_study("mlp", out=tmp_path, scale="smoke", seeds=2)
    assert json.loads(path.read_text()) == elsewhere


def test_a_study_that_cannot_be_written_is_what_the_error_is_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlp").write_text("a file where the study's folder should be")
    assert main(["reproduce", "mlp", "--scale", "smoke", "--out", str(tmp_path)]) == 1
    assert f"{tmp_path / 'mlp'} cannot be written" in capsys.readouterr().err


def start(*words: object) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    main_program = "import sys; from hessblocks.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", main_program, "reproduce", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence on standard error after the lines of progress."""
    said = capsys.readouterr().err
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("hessblocks: ")]
    return line


MLP = ["mlp", "--scale", "smoke", "--seeds", "1", "--workers", "1"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        assert main(["reproduce", *MLP, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def out(measured: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(measured, tmp_path / "out"))


def test_a_store_of_a_newer_version_is_refused_untouched(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = out / "mlp" / POINTS
    content = points.read_bytes() + b'{"version":4,"record":{}}\n'
    points.write_bytes(content)
    assert main(["reproduce", *MLP, "--out", str(out)]) == 1
    said = complaint(capsys)
    assert (
        "written by another version of hessblocks (store version 4, this one reads 2 to 3)" in said
    )
    assert "use that version, or choose another --out" in said
    assert points.read_bytes() == content


@pytest.mark.filterwarnings("default:.*damaged line")  # shown, as a user sees it
def test_a_damaged_line_is_kept_aside_said_and_its_point_redone(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = out / "mlp" / POINTS
    before, table = points.read_bytes(), (out / "mlp" / "results.csv").read_bytes()
    lines = before.splitlines(keepends=True)
    bad = lines[3].replace(b'"seconds":', b'"second":', 1)
    points.write_bytes(b"".join([*lines[:3], bad, *lines[4:]]))
    capsys.readouterr()
    assert main(["reproduce", *MLP, "--json", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "1 damaged line(s) kept aside in points.damaged" in said.err
    assert json.loads(said.out)["studies"]["mlp"]["measured"] == 1
    assert (points.parent / DAMAGED).read_bytes() == bad
    keys = [json.loads(line)["record"]["key"] for line in points.read_bytes().splitlines()]
    assert len(keys) == len(set(keys)) == len(lines)
    assert (out / "mlp" / "results.csv").read_bytes() == table


@pytest.mark.slow
def test_of_two_commands_on_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    first = start("skipless", "--scale", "smoke", "--workers", 1, "--out", tmp_path)
    try:
        assert first.stderr is not None
        assert first.stderr.readline().startswith("skipless: 0 of")  # it holds the folder now
        second = start("mlp", "--scale", "smoke", "--out", tmp_path)
        _, said = second.communicate(timeout=120)
        assert second.returncode == 1
        assert f"--out: {tmp_path} is in use by process {first.pid}" in said
        assert not (tmp_path / "mlp").exists()
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


def test_a_cluster_that_does_not_answer_loses_nothing(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    before = (out / "mlp" / POINTS).read_bytes()
    words = ["reproduce", "mlp", "--scale", "smoke", "--ray", address, "--out", str(out)]
    assert main(words) == 1
    assert complaint(capsys).startswith(f"hessblocks: --ray: nothing answers at '{address}'")
    assert (out / "mlp" / POINTS).read_bytes() == before


def test_a_point_that_fails_leaves_a_page_of_the_others(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "report.html").unlink()
    lines = (out / "mlp" / POINTS).read_bytes().splitlines(keepends=True)
    (out / "mlp" / POINTS).write_bytes(b"".join(lines[1:]))

    def fail(settings: object) -> list:
        raise RunError("no such thing.")

    broken = dataclasses.replace(find("mlp"), measure=fail)
    monkeypatch.setattr("hessblocks_studies.hessian_paper.linear_mlp.STUDY", broken)
    assert main(["reproduce", *MLP, "--out", str(out)]) == 1
    assert "mlp: 1 point(s) failed, the first (setup head, layers 1" in complaint(capsys)
    assert "1 of 200 points are missing" in (out / "report.html").read_text()
