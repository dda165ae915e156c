"""What the library's commands and `hessblocks reproduce` have in common: options, sentences, a
quick start."""

import json
import os
import re
from pathlib import Path

import pytest

from hessblocks.blocks import preset
from hessblocks.cli.commands.training import RATE
from hessblocks_studies import reproduce
from hessblocks_studies.shared.variants import best_start
from tests.cli.helpers import Shell
from tests.cli.test_start import HEAVY, MODULES, answer

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_its_help_loads_nothing_heavy() -> None:
    told, said, _ = answer("reproduce", "--help")
    assert told["status"] == 0
    assert not HEAVY & set(told["loaded"])
    assert told["modules"] < MODULES
    assert all(name in said for name in ("--out", "--json", "--traceback", "--scale"))


def test_the_help_of_all_commands_lists_it_with_its_line() -> None:
    told, said, errors = answer("--help")
    assert "│ reproduce  Measure a figure or table again" in said
    assert errors == ""
    assert told["modules"] < MODULES
    assert not HEAVY & set(told["loaded"])


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("fig9", "--out", "out"), 2, "study: 'fig9' is unknown"),
        ((), 0, ""),
        (("fig3a", "--scale", "huge"), 2, 'Invalid value "huge" for --scale'),
        (("fig3a", "--workers", "0"), 2, "--workers: expected a whole number of at least 1, got 0"),
        (("fig3a", "--ray", "bad", "--out", "out"), 2, "--ray: expected host:port"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    status: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = shell("reproduce", *words)
    assert outcome.status == status
    assert "Traceback" not in outcome.errors
    assert re.search(expected, outcome.errors)


def test_the_demo_trains_at_the_rate_that_a_study_found() -> None:
    tuning = json.loads((RESULTS / "trial.json").read_text("utf-8"))["tables"]["tuning"]
    best = {
        line["variant"]: line["learning_rate"]
        for line in tuning
        if line["best"] and line["runs"] == "narrow"
    }
    assert {best[name] for name in ("pre-ln, zero queries", "sas", "sas-p")} == {RATE}
    assert best_start("pre-ln", 64) == preset("pre-ln-zero", width=64).resolved_embedding_std


@pytest.mark.parametrize(
    ("cores", "memory", "workers"), [(8, 64, 8), (8, 7, 3), (2, 7, 2), (4, 1, 1)]
)
def test_no_more_workers_are_started_than_memory_is_for(
    cores: int, memory: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(reproduce, "main_memory", lambda: memory * 10**9)
    assert reproduce._workers() == workers
