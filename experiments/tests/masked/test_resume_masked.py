"""A pretraining that was stopped goes on, and ends with the losses and weights of an undisturbed one."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from hessblocks.data.cache import cache_root
from hessblocks.data.corpus import Corpus
from hessblocks.storage.lines import read_lines
from hessblocks.training.folder import CheckpointWarning
from hessblocks.training.trainer import GuardedTrainer
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.masked.pretrain import Pretrained, pretrained
from tests.training.helpers import killed_at_write

SETTINGS = Pretraining(
    preset="sas-p", depth=1, width=16, heads=2, mlp_width=32, context=16, vocab_size=400, steps=24,
    batch_size=8, learning_rate=1e-2, evaluations=8, evaluation_sequences=16, seed=5,
)  # fmt: skip


class StoppedError(Exception):
    """A machine that fails."""


def stop_before(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the n-th update from now on fail."""
    whole = GuardedTrainer.training_step
    left = step

    def failing(self: GuardedTrainer, *given: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            raise StoppedError
        return whole(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GuardedTrainer, "training_step", failing)


def weights(found: Pretrained) -> bytes:
    return (found.folder / "model.safetensors").read_bytes()


def work() -> list[Path]:
    """Folders of pretrainings under way."""
    return list(cache_root().glob(".pretrained-*.training"))


@pytest.fixture
def undisturbed(own_cache: None, corpus: Corpus) -> tuple[Pretrained, bytes]:
    """Losses and weights; the cache forgets them."""
    found = pretrained(SETTINGS, corpus)
    kept = weights(found)
    shutil.rmtree(found.folder)
    assert not work()
    return found, kept


@pytest.mark.parametrize(
    ("step", "windows"),
    [
        (5, None),
        (5, 40),
        (22, 40),
        (8, 42),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((7, None), (11, 40), (17, 40))),
    ],
    ids=str,
)
def test_stopped_by_an_error_it_ends_with_the_same_digits(
    corpus: Corpus,
    own_cache: None,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    windows: int | None,
) -> None:
    """Stopped in a first pass over the data, and in, before and after the last batch of a later one.

    Checkpoints are made each 3 steps; 40 windows are 5 batches, 42 are 5 and a smaller one.
    """
    if windows:
        few = corpus.splits["train"][: 16 * windows]
        corpus = replace(corpus, splits={**corpus.splits, "train": few})
    expected = pretrained(SETTINGS, corpus)
    kept = weights(expected)
    shutil.rmtree(expected.folder)
    with monkeypatch.context() as patch:
        stop_before(step, patch)
        with pytest.raises(StoppedError):
            pretrained(SETTINGS, corpus)
    (left,) = work()
    assert max(line["step"] for line in read_lines(left / "metrics.jsonl")) == (step - 1) // 3 * 3
    made: list[int] = []
    whole = GuardedTrainer.training_step

    def counted(self: GuardedTrainer, *given: object) -> object:
        made.append(1)
        return whole(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GuardedTrainer, "training_step", counted)
    torch.manual_seed(step)  # another process has another random state
    found = pretrained(SETTINGS, corpus)
    assert found == expected
    assert weights(found) == kept
    assert len(made) == 24 - (step - 1) // 3 * 3
    assert not work()


@pytest.mark.parametrize(
    "moment", [40, 130, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 70, 100))]
)
def test_killed_at_a_write_it_ends_with_the_same_digits(
    corpus: Corpus, undisturbed: tuple[Pretrained, bytes], moment: int
) -> None:
    expected, kept = undisturbed
    assert killed_at_write(partial(pretrained, SETTINGS, corpus), moment)
    found = pretrained(SETTINGS, corpus)
    assert found == expected
    assert weights(found) == kept


def test_a_damaged_checkpoint_is_said_and_costs_no_digit(
    corpus: Corpus, undisturbed: tuple[Pretrained, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, kept = undisturbed
    with monkeypatch.context() as patch:
        stop_before(14, patch)
        with pytest.raises(StoppedError):
            pretrained(SETTINGS, corpus)
    (left,) = work()
    (left / "checkpoints" / "checkpoint-12" / "masks.pt").write_bytes(b"")
    with pytest.warns(CheckpointWarning, match="checkpoint-12 is damaged"):
        found = pretrained(SETTINGS, corpus)
    assert (found, weights(found)) == (expected, kept)
