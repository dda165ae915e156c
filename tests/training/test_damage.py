"""Files that a finished run has lost: named, mended or measured again, and never spread further."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hessblocks.data.corpus import Corpus
from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.storage import DamageWarning
from hessblocks.storage.tables import STEPS, read_results, step_of, write_results
from hessblocks.training.comparison import compare
from hessblocks.training.folder import RunFolder, save_model, writing
from hessblocks.training.preparation import build_model
from tests.training.helpers import COMPARISON, MODEL, complete, files, numbers


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the finished comparison."""
    return Path(shutil.copytree(undisturbed, tmp_path / "out"))


def damage_a_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], "{" + lines[3], *lines[4:]]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_a_line, "its line 4 is damaged"),
        (lambda path: path.write_text(path.read_text()[:-9]), "is damaged"),
        (lambda path: path.write_text("[]\n"), "its line 1 is damaged"),
        (lambda path: path.write_text(""), "absent or empty"),
        (lambda path: path.unlink(), "absent or empty"),
    ],
    ids=["line", "end", "list", "empty", "absent"],
)
@pytest.mark.parametrize("preset", COMPARISON.presets)
def test_damaged_metrics_of_a_finished_run_leave_the_gathered_ones_alone(
    corpus: Corpus, finished: Path, damage: object, reason: str, preset: str
) -> None:
    run = finished / "runs" / f"{preset}-seed0"
    gathered = {name: (finished / name).read_bytes() for name in ("metrics.jsonl", "results.csv")}
    damage(run / "metrics.jsonl")  # type: ignore[operator]
    with pytest.raises(RunError, match=f"metrics.jsonl: .*{reason}.*; remove .*{run.name} and run"):
        complete(corpus, finished)
    assert {name: (finished / name).read_bytes() for name in gathered} == gathered


@pytest.mark.slow
def test_the_remedy_for_damaged_metrics_works(
    corpus: Corpus, undisturbed: Path, finished: Path
) -> None:
    shutil.rmtree(finished / "runs" / "pre-ln-seed0")
    complete(corpus, finished)
    assert numbers(finished) == numbers(undisturbed)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_whose_rows_are_lost_is_measured_again(
    corpus: Corpus, undisturbed: Path, finished: Path, step: str
) -> None:
    path = finished / "runs" / "sas-p-seed0" / "results.csv"
    rows = read_results(path)
    write_results(path, [row for row in rows if step_of(row) != step])
    complete(corpus, finished)
    assert numbers(finished) == numbers(undisturbed)
    assert read_results(path) == rows


def test_of_a_step_of_which_some_rows_are_lost_none_counts_twice(
    corpus: Corpus, undisturbed: Path, finished: Path
) -> None:
    path = finished / "runs" / "sas-p-seed0" / "results.csv"
    rows = read_results(path)
    write_results(path, [row for row in rows if (row.quantity, row.stage) != ("loss", "final")])
    complete(corpus, finished)
    assert read_results(path) == rows


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "seal.json"])
def test_a_damaged_model_of_a_finished_run_is_reported(
    corpus: Corpus, undisturbed: Path, finished: Path, name: str
) -> None:
    model = finished / "runs" / "sas-p-seed0" / "model"
    (model / name).write_bytes((model / name).read_bytes()[:-2])
    words = "model has (another|a damaged) .*; remove .*sas-p-seed0 and run again"
    with pytest.warns(DamageWarning, match=words):
        compare(COMPARISON, corpus, finished, Progress())
    assert numbers(finished) == numbers(undisturbed)


def test_a_model_that_cannot_be_saved_leaves_the_one_before(
    corpus: Corpus, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(finished / "runs" / "sas-p-seed0")
    before = files(run.model)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    model = build_model(MODEL, "sas-p", corpus.vocab_size, seed=0)
    with pytest.raises(RunError, match=r"--out: .* cannot be written \(No space left on device\)"):
        save_model(model, PreTrainedTokenizerFast(tokenizer_object=corpus.tokenizer), run)
    assert before
    assert files(run.model) == before


def test_only_a_failing_writer_counts_as_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"), writing(tmp_path / "a", tmp_path):
        raise RuntimeError("shapes do not fit")
    with (
        pytest.raises(RunError, match="disk is full or failing"),
        writing(tmp_path / "b", tmp_path),
    ):
        torch.save(torch.zeros(10**6), "/dev/full")
