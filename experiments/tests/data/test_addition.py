"""Addition: every sum is right, and only its answer is asked for."""

import pytest
import torch

from hessblocks.conventions import IGNORED
from hessblocks.errors import ArgumentError
from hessblocks_studies.data.addition import addition_batch, read


@pytest.mark.parametrize("digits", [1, 3, 5])
def test_every_sum_is_right(digits: int) -> None:
    batch = addition_batch(50, digits=digits)
    assert batch["input_ids"].shape == (50, 3 * digits + 3)
    for tokens in batch["input_ids"]:
        question, answer = read(tokens).split("=")
        assert sum(map(int, question.split("+"))) == int(answer)
        assert len(answer) == digits + 1


def test_only_the_answer_has_labels() -> None:
    batch = addition_batch(4)
    assert (batch["labels"][:, :12] == IGNORED).all()
    assert torch.equal(batch["labels"][:, 12:], batch["input_ids"][:, 12:])


def test_the_seed_decides() -> None:
    first, again, other = (addition_batch(8, seed=seed)["input_ids"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "name"), [({"sums": 0}, "sums"), ({"sums": 1, "digits": 0}, "digits")]
)
def test_sizes_below_one_are_refused(arguments: dict[str, int], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        addition_batch(**arguments)
