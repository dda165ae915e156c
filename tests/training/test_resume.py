"""Killed at any moment and started again, a comparison ends with the numbers of an undisturbed
one."""

import contextlib
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from hessblocks.data.corpus import Corpus
from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.storage.tables import read_lines, read_results
from hessblocks.training.comparison import compare
from hessblocks.training.folder import CheckpointWarning
from tests.breadth import everyday
from tests.training.helpers import (
    ALONE,
    complete,
    files,
    in_process_of_its_own,
    killed_at_write,
    listed_anew,
    numbers,
)

MOMENTS = everyday([58, 117, 9, 200, 2, 23, 40, 77, 96, 140, 170], 117)
"""Each is most of a comparison; the first falls on results, the second into a checkpoint."""
RUN = Path("runs", "pre-ln-seed0")
WEIGHTS = RUN / "model" / "model.safetensors"


@pytest.mark.slow
def test_two_undisturbed_runs_give_the_same_digits(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    complete(corpus, tmp_path / "out")
    assert numbers(tmp_path / "out") == numbers(undisturbed)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_write_it_ends_with_the_same_numbers(
    corpus: Corpus, undisturbed: Path, tmp_path: Path, moment: int
) -> None:
    out = tmp_path / "out"
    assert killed_at_write(partial(complete, corpus, out), moment)
    complete(corpus, out)
    assert numbers(out) == numbers(undisturbed)
    assert files(out) == files(undisturbed)


@pytest.mark.slow
def test_killed_at_ten_random_moments_it_ends_with_the_same_numbers(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    draw = random.Random(0)
    for _ in range(10):
        process = in_process_of_its_own(partial(complete, corpus, out))
        time.sleep(draw.uniform(0.05, 0.2))
        process.kill()
        process.join(600)
    complete(corpus, out)
    assert numbers(out) == numbers(undisturbed)
    assert files(out) == files(undisturbed)


def test_losses_and_training_time_go_on_from_the_checkpoint(
    corpus: Corpus, stopped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    run = out / RUN
    kept = [line for line in read_lines(run / "metrics.jsonl") if line["step"] <= 8]
    complete(corpus, out, ALONE)
    lines = read_lines(run / "metrics.jsonl")
    seconds = [line["seconds"] for line in lines]
    total = [
        row.value for row in read_results(run / "results.csv") if row.quantity == "training_time"
    ]
    assert lines[: len(kept)] == kept
    assert seconds == sorted(seconds)
    assert total == [seconds[-1]]


def test_a_checkpoint_of_other_parameters_is_one_sentence(
    corpus: Corpus, stopped: Path, tmp_path: Path
) -> None:
    """As that of a preset which has trained more numbers since."""
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    (checkpoint,) = (out / RUN / "checkpoints").glob("checkpoint-8")
    path = checkpoint / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    state["param_groups"][0]["params"].pop()
    torch.save(state, path)
    listed_anew(checkpoint)
    with pytest.raises(
        RunError, match=r"checkpoint-8: its optimiser is that of a model with other"
    ):
        complete(corpus, out, ALONE)


def test_what_is_finished_is_never_computed_again(
    corpus: Corpus, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    before = {path: (out / path).read_bytes() for path in files(out)}
    monkeypatch.setattr("hessblocks.training.preparation.Prepared.build", None)
    for name in ("_train", "_map", "_trained_model"):
        monkeypatch.setattr(f"hessblocks.training.run.Run.{name}", None)
    complete(corpus, out)
    assert {path: (out / path).read_bytes() for path in files(out)} == before


def flip_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncate_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_optimizer(checkpoint: Path) -> None:
    (checkpoint / "optimizer.pt").unlink()


def garble_manifest(checkpoint: Path) -> None:
    (checkpoint / "seal.json").write_text("[]")


def plant_pickle(checkpoint: Path) -> None:
    """What unpickling without care would run."""
    (checkpoint / "rng_state.pth").write_bytes(b"cos\nabort\n(tR.")


DAMAGES = (flip_weights, truncate_weights, lose_optimizer, garble_manifest, plant_pickle)
TRIED = {("last", flip_weights), ("last", garble_manifest), ("both", flip_weights)}
"""What is tried every day: damage of both checkpoints is a training anew."""


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        pytest.param(
            which,
            damage,
            id=f"{which}-{damage.__name__}",
            marks=[] if (which, damage) in TRIED else [pytest.mark.slow],
        )
        for which in ("last", "both")
        for damage in DAMAGES
    ],
)
def test_a_damaged_checkpoint_is_reported_and_costs_no_digit(
    corpus: Corpus,
    alone: Path,
    stopped: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    which: str,
) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    run = out / RUN
    damaged = ("checkpoint-8", "checkpoint-4")[: 1 if which == "last" else 2]
    for name in damaged:
        damage(run / "checkpoints" / name)
    with contextlib.ExitStack() as expected:
        for name in damaged:
            said = f"pre-ln-seed0/{name} (has|lacks) .*; it is set aside"
            expected.enter_context(pytest.warns(CheckpointWarning, match=said))
        compare(ALONE, corpus, out, Progress())
    assert numbers(out) == numbers(alone)
    assert (out / WEIGHTS).read_bytes() == (alone / WEIGHTS).read_bytes()


def test_lost_metrics_are_reported_and_cost_no_digit(
    corpus: Corpus, alone: Path, stopped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    (out / RUN / "metrics.jsonl").write_text("{")
    with pytest.warns(CheckpointWarning, match=r"metrics.jsonl is damaged; training .* start"):
        compare(ALONE, corpus, out, Progress())
    assert numbers(out) == numbers(alone)
    assert (out / WEIGHTS).read_bytes() == (alone / WEIGHTS).read_bytes()
