"""Files that are of another run, or cannot be read: said in a sentence, set aside, and never a
digit of the result."""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import ComparisonSettings
from hessblocks.storage import DamageWarning, load_results
from hessblocks.training import CheckpointWarning
from hessblocks.training.comparison import compare
from tests.breadth import everyday
from tests.training.helpers import ALONE, COMPARISON, complete, files, numbers, unsealed, with_seals

ONE, OTHER = "pre-ln-seed0", "sas-p-seed0"
CLOCKS = re.compile(r"^.*,(tokens_per_second|peak_memory|training_time),.*$", re.MULTILINE)


@pytest.fixture
def begun(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "begun"))


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "finished"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def goes_on(
    corpus: Corpus,
    out: Path,
    undisturbed: Path,
    warning: type,
    match: str,
    settings: ComparisonSettings = ALONE,
) -> None:
    """The comparison says it, and ends with the numbers of an undisturbed one."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", warning)
        compare(settings, corpus, out, Progress())
    assert [one for one in said if re.search(match, str(one.message))], [
        str(o.message) for o in said
    ]
    assert {one.category for one in said} == {warning}
    assert numbers(out) == numbers(undisturbed)


def test_checkpoints_of_another_seed_are_set_aside(
    corpus: Corpus, begun: Path, alone: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    work = replace(ALONE, seeds=(1,), training=LONGER)
    with pytest.raises(KeyboardInterrupt):
        compare(work, corpus, foreign, Stop())
    checkpoints = begun / "runs" / ONE / "checkpoints"
    shutil.rmtree(checkpoints)
    shutil.copytree(foreign / "runs" / "pre-ln-seed1" / "checkpoints", checkpoints)
    goes_on(corpus, begun, alone, CheckpointWarning, "checkpoint-8 is of another run; it is")
    assert (begun / "runs" / ONE / "aside" / "checkpoint-8" / "seal.json").exists()


class Stop(Progress):
    """Interrupts training once a second checkpoint is there."""

    def step(self, count: int, loss: float | None) -> None:
        if count == 9:
            raise KeyboardInterrupt


LONGER = replace(COMPARISON.training, evaluate_every=4)


def rename(checkpoints: Path) -> None:
    (checkpoints / "checkpoint-8").rename(checkpoints / "checkpoint-11")


def plant_an_old_one(checkpoints: Path) -> None:
    shutil.copytree(checkpoints / "checkpoint-8", checkpoints / "checkpoint-2")


def plant_a_file(checkpoints: Path) -> None:
    (checkpoints / "checkpoint-8" / "scaler.pt").write_bytes(b"x")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (rename, "checkpoint-11 was checkpoint-8 when it was written; it is set aside"),
        pytest.param(
            plant_an_old_one,
            "checkpoint-2 was checkpoint-8 when it was written; it is set aside",
            marks=pytest.mark.slow,
        ),
        (
            plant_a_file,
            "checkpoint-8 holds scaler.pt, which is not one of its files; it is set aside",
        ),
    ],
)
def test_a_checkpoint_that_is_not_what_it_seems_is_set_aside(
    corpus: Corpus, begun: Path, alone: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(begun / "runs" / ONE / "checkpoints")
    goes_on(corpus, begun, alone, CheckpointWarning, words)


def test_a_checkpoint_in_a_finished_run_is_not_thrown_away(
    corpus: Corpus, begun: Path, finished: Path, undisturbed: Path
) -> None:
    foreign = begun / "runs" / ONE / "checkpoints"
    run = finished / "runs" / OTHER
    shutil.copytree(foreign, run / "checkpoints")
    (run / "checkpoints" / "notes").mkdir()
    words = "checkpoint-8 is of another run"
    goes_on(corpus, finished, undisturbed, CheckpointWarning, words, COMPARISON)
    kept = sorted(path.name for path in (run / "aside").iterdir())
    assert kept == ["checkpoint-4", "checkpoint-8"]
    assert (run / "checkpoints" / "notes").exists()


def lose_the_last_line(path: Path) -> None:
    kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= 6]
    path.write_text("".join(line + "\n" for line in kept))


def garble_a_late_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if json.loads(line)["step"] == 6)
    lines[place] = lines[place].replace('"step": ', '"stop": ')
    path.write_text("".join(lines))


@pytest.mark.parametrize("spoil", [lose_the_last_line, garble_a_late_line])
def test_a_lost_line_is_reported_and_costs_no_digit(
    corpus: Corpus,
    begun: Path,
    alone: Path,
    spoil: Callable[[Path], None],
) -> None:
    spoil(begun / "runs" / ONE / "metrics.jsonl")
    match = r"metrics.jsonl is damaged.*; training pre-ln, seed 0 from the start"
    goes_on(corpus, begun, alone, CheckpointWarning, match)
    assert (begun / "runs" / ONE / "aside").exists() == (spoil is garble_a_late_line)


def drop(path: Path, number: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    del lines[number]
    path.write_text("".join(lines))


@pytest.mark.parametrize("name", ["results.csv", "metrics.jsonl"])
def test_gathered_files_that_lack_rows_are_gathered_anew(
    corpus: Corpus, finished: Path, undisturbed: Path, name: str
) -> None:
    drop(finished / name, -1)
    complete(corpus, finished)
    assert (finished / name).read_bytes() == (undisturbed / name).read_bytes()


def test_an_edited_request_does_not_fit_its_runs(corpus: Corpus, finished: Path) -> None:
    edit(finished / "config.json", '"probes": 4', '"probes": 5')
    with pytest.raises(ArgumentError, match=r"curvature\.probes is 4, was 5"):
        complete(corpus, finished)


def test_a_run_that_was_not_asked_for_is_not_gathered(finished: Path, undisturbed: Path) -> None:
    more = finished / "runs" / "sas-seed3"
    shutil.copytree(finished / "runs" / ONE, more)
    for path in (more / "config.json", more / "metrics.jsonl", more / "results.csv"):
        path.write_text(path.read_text().replace("pre-ln", "sas"))
    assert load_results(finished).measurements == load_results(undisturbed).measurements
    assert load_results(finished).presets == ("pre-ln", "sas-p")


def test_lost_rows_of_training_are_taken_from_the_model_and_its_lines(
    corpus: Corpus, finished: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished / "runs" / ONE / "results.csv"
    whole = path.read_bytes()
    path.write_text(re.sub(r"pre-ln,0,.*(loss|time|memory|second),.*\n", "", path.read_text()))
    monkeypatch.setattr("hessblocks.training.run.Run.carry_out", None)
    complete(corpus, finished)
    assert path.read_bytes() == whole


def change_a_weight(model: Path) -> None:
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)


def put_another_model_there(model: Path) -> None:
    shutil.rmtree(model)
    shutil.copytree(model.parents[1] / OTHER / "model", model)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change_a_weight, "model has another model.safetensors .*; remove .* to train once more"),
        (put_another_model_there, "model is of another run; remove .* and run again"),
        (lambda model: (model / "x.py").touch(), "model holds x.py, .*; take it out"),
        (lambda model: shutil.rmtree(model), "model is absent; remove"),
    ],
    ids=["weights", "foreign", "planted", "absent"],
)
def test_a_model_that_is_not_the_trained_one_is_reported(
    corpus: Corpus, finished: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(finished / "runs" / ONE / "model")
    with pytest.warns(DamageWarning, match=words):
        compare(COMPARISON, corpus, finished, Progress())


def test_a_resumed_run_has_the_bytes_of_an_undisturbed_one_but_for_clocks(
    corpus: Corpus, begun: Path, alone: Path
) -> None:
    complete(corpus, begun, ALONE)
    assert files(begun) == files(alone)
    for name in files(alone):
        one, other = (begun / name).read_bytes(), (alone / name).read_bytes()
        if name.endswith("results.csv"):
            one, other = (CLOCKS.sub("", text.decode()).encode() for text in (one, other))
        if not name.endswith((".jsonl", "seal.json", ".hessblocks.lock")):
            assert one == other, name


@pytest.mark.parametrize("older", everyday([with_seals, unsealed], with_seals))
def test_folders_of_older_versions_are_read_and_gone_on_with(
    corpus: Corpus,
    begun: Path,
    finished: Path,
    alone: Path,
    undisturbed: Path,
    older: Callable[[Path], Path],
) -> None:
    for out, settings, whole in ((begun, ALONE, alone), (finished, COMPARISON, undisturbed)):
        complete(corpus, older(out), settings)
        assert numbers(out) == numbers(whole)


def test_lines_are_on_the_disk_before_the_manifest_and_that_before_its_name(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    out = tmp_path / "out"
    forced, replaced, renamed = os.fsync, Path.replace, Path.rename

    def fsync(descriptor: int) -> None:
        events.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        forced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for name, old in (("replace", replaced), ("rename", renamed)):

        def move(path: Path, target: Path, old: Callable[..., Path] = old) -> Path:
            events.append(f"name {target}")
            return old(path, target)

        monkeypatch.setattr(Path, name, move)
    complete(corpus, out, ALONE)
    run = out / "runs" / ONE
    checkpoint = run / "checkpoints" / "checkpoint-4"
    order = [
        f"sync {run / 'metrics.jsonl'}",
        f"sync {checkpoint / 'model.safetensors'}",
        f"name {checkpoint / 'seal.json'}",
        f"sync {checkpoint}",
        f"sync {checkpoint.parent}",
        f"name {run / 'model'}",
        f"sync {run}",
    ]
    places = []
    for event in order:
        start = places[-1] + 1 if places else 0
        assert event in events[start:], event
        places.append(events.index(event, start))
    sealed = next(i for i, event in enumerate(events) if "checkpoint-4/.seal.partial" in event)
    assert places[1] < sealed < places[2]
