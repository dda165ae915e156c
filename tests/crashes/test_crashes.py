"""Whatever stops a command at whatever write, the same command ends it with the results of an
undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes import commands, ordeal
from tests.crashes.disk import ERRORS, KILLS, Fault

CASES = {"train": 50, "compare": 36, "curvature": 44}
"""Calls of each command at which each kind of fault comes, spread evenly: about 18 minutes on two
idle cores."""
FEW = 1
"""Calls at which each kind comes every day; each is two commands."""
STEP = "hessblocks.training.trainer.GuardedTrainer.training_step"
MEMORY = {
    "train": STEP,
    "compare": STEP,
    "curvature": "hessblocks.inspection.curvature_run.CurvatureRun._measure",
}
"""What each command does several times with much memory."""
OFTEN = {"train": 4, "compare": 4, "curvature": 3}
"""How often; `curvature` once for each of its three groups."""
ALLOCATORS = {
    "torch": RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. can't allocate memory"),
    "python": MemoryError(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KILLS, *ERRORS])
@pytest.mark.parametrize("command", commands.COMMANDS)
def test_a_command_survives_a_fault_at_any_write(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ordeal.undisturbed(command)
    count, wrong = ordeal.survived(command, kind, CASES[command], tmp_path)
    with capsys.disabled():
        if kind == KILLS[0]:
            print(f"\n{command}: {len(whole.calls)} calls\n{ordeal.calls_table(whole.calls)}")
        print(f"\n{command}, {kind}: {count} of {len(whole.calls)} calls, {len(wrong)} faults")
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("command", commands.COMMANDS)
def test_every_change_of_the_disk_is_a_call(command: str) -> None:
    whole = ordeal.undisturbed(command)
    assert whole.unseen == []
    assert len(whole.calls) > 100


@pytest.mark.parametrize("kind", [pytest.param("torn", marks=pytest.mark.slow), "power"])
def test_train_survives_kills(kind: str, tmp_path: Path) -> None:
    """The small version: each kind of kill at one of the calls."""
    assert ordeal.undisturbed("train").unseen == []
    count, wrong = ordeal.survived("train", kind, FEW, tmp_path)
    assert (count, wrong) == (FEW, [])


@pytest.mark.slow
def test_half_a_configuration_is_none(tmp_path: Path) -> None:
    calls = ordeal.undisturbed("train").calls
    (moment,) = (n for n, call in enumerate(calls, 1) if _file(call) == ("write", "out", "config"))
    assert ordeal.faults_of("train", Fault(kind="torn", moment=moment), tmp_path / "run") == []


def _file(call: str) -> tuple[str, str, str]:
    """Kind of call, folder, and stem of what is written, be it in place or beside it."""
    kind, _, path = call.partition(" ")
    return kind, str(Path(path).parent), Path(path).name.lstrip(".").partition(".")[0]


@pytest.mark.parametrize("kind", ["ENOSPC"])
def test_train_survives_a_failing_disk(kind: str, tmp_path: Path) -> None:
    assert ordeal.survived("train", kind, FEW, tmp_path) == (FEW, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "tokenizer.json",  # of Rust as well, and written once
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("model.safetensors", "optimizer.pt", "train.bin")
        ),
    ],
)
def test_a_library_that_cannot_write_is_one_sentence(where: str, tmp_path: Path) -> None:
    """Its own error, of Rust or of C++, where a file cannot grow."""
    calls = ordeal.undisturbed("train").calls
    for moment, call in enumerate(calls, start=1):
        if call.startswith("library") and call.endswith(where):
            fault = Fault(kind="ENOSPC", moment=moment)
            assert ordeal.faults_of("train", fault, tmp_path / str(moment)) == []


@pytest.mark.parametrize(
    ("command", "allocator", "moment"),
    [
        ("train", "torch", 3),
        pytest.param("train", "python", 4, marks=pytest.mark.slow),
        *(
            pytest.param(command, allocator, moment, marks=pytest.mark.slow)
            for command in MEMORY
            for allocator in ALLOCATORS
            for moment in range(1, OFTEN[command] + 1)
        ),
    ],
)
def test_a_full_memory_is_one_sentence_and_the_command_goes_on(
    command: str, allocator: str, moment: int, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise ALLOCATORS[allocator]

    whole = ordeal.undisturbed(command)
    ended = commands.run(
        command,
        commands.code(),
        tmp_path / "out",
        before=lambda: commands.at_call(MEMORY[command], moment, refuse),
    )
    assert ended.status == 1, ended.said
    assert "out of memory; make the model, the batch or the sequences smaller." in ended.said
    assert "Traceback" not in ended.said
    assert commands.run(command, commands.code(), tmp_path / "out").status == 0
    assert commands.results(tmp_path / "out") == whole.results


def test_moments_are_spread_over_all_calls() -> None:
    assert ordeal.spread(100, 100) == list(range(1, 101))
    assert ordeal.spread(3, 10) == [1, 2, 3]
    moments = ordeal.spread(100, 10)
    assert [moment // 10 for moment in moments] == sorted({moment // 10 for moment in moments})
