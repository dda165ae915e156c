"""Norms from the inner products of samples: unbiased, with error bars that hold, and traces without
returning walks."""

import itertools

import pytest
import torch
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators.pairs import PairNorms, _moments, norms_from_pairs
from tests.linalg.coverage import LEVELS

SIGNS = 200
SPECTRA = {
    "rank one": torch.ones(1),
    "rank three": torch.ones(3),
    "flat": torch.linspace(0.5, 1.5, 60),
    "decaying": torch.logspace(0, -6, 60),
}
RUNS = {16: 400, 32: 300, 128: 200}


def factors(angle: float = 0.5) -> list[Tensor]:
    """F_i, as (signs, entries), of each spectrum, and one at an angle to the second: blocks large
    and small."""
    draw = torch.Generator().manual_seed(2)

    def basis(columns: int) -> Tensor:
        square = torch.randn(SIGNS, columns, dtype=torch.float64, generator=draw)
        return torch.linalg.qr(square)[0]

    found = [basis(len(one)) * one.double().sqrt() for one in SPECTRA.values()]
    return [*found, angle * found[1] + (1 - angle) * basis(3)]


def truth_of(known: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack([(a.T @ b).norm() for b in known]) for a in known])


def share_of(known: list[Tensor]) -> float:
    whole = torch.cat(known, 1)
    own = truth_of(known).diagonal().square().sum()
    return 1 - float(own / (whole.T @ whole).norm() ** 2)


def run(known: list[Tensor], seed: int, size: int, batches: int = 1) -> PairNorms:
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (batches, size, SIGNS), generator=draw).double() * 2 - 1
    return norms_from_pairs(torch.stack([(signs @ one) @ (signs @ one).mT for one in known]))


@pytest.mark.parametrize(("size", "batches"), [(16, 1), (32, 1), (128, 1), (16, 4)])
def test_squares_are_unbiased_and_error_bars_hold(size: int, batches: int) -> None:
    known, count = factors(), RUNS[size]
    truth = truth_of(known)
    runs = [run(known, seed, size, batches) for seed in range(count)]
    values = torch.stack([one.values for one in runs])
    errors = torch.stack([one.standard_errors for one in runs])
    off = values.sign() * values.square() / truth.square() - 1
    assert float((off.mean(0) / (off.std(0) / count**0.5)).abs().max()) < 3.5  # 15 blocks
    inside = {width: ((values - truth).abs() <= width * errors).double() for width in LEVELS}
    own = torch.eye(len(known), dtype=torch.bool)
    for width, level in LEVELS.items():
        assert float(inside[width][:, own].mean()) >= level
        assert float(inside[width][:, ~own].mean()) >= level
        assert (
            float(inside[width].mean(0).min()) >= level - 2 * (level * (1 - level) / count) ** 0.5
        )
    share, expected = [one.off_diagonal_share for one in runs], share_of(known)
    for width, level in LEVELS.items():
        held = [abs(one.value - expected) <= width * one.standard_error for one in share]
        assert sum(held) >= (level - 0.01) * count


def test_bars_are_no_wider_than_they_need_to_be() -> None:
    """At 128 samples a bar is next to the deviation over runs; wider only where the spread is that
    of rank one."""
    known = factors()
    runs = [run(known, seed, 128) for seed in range(100)]
    spread = torch.stack([one.values for one in runs]).std(0)
    told = torch.stack([one.standard_errors for one in runs]).median(0).values
    big = truth_of(known) > 0.5
    ratio = (told / spread)[big]
    assert 0.8 < float(ratio.min()) <= float(ratio.max()) < 1.9
    assert float(ratio.median()) < 1.3


def test_traces_take_no_sample_twice() -> None:
    """Against the sum over all walks through four different samples, one by one."""
    draw = torch.Generator().manual_seed(0)
    grams = torch.randn(2, 2, 6, 6, dtype=torch.float64, generator=draw) + 2
    grams = (grams + grams.mT) * (1 - torch.eye(6))
    squares, crossed, walked = _moments(grams)
    walks = list(itertools.permutations(range(6), 4))
    for i, j in itertools.product(range(2), range(2)):
        found = torch.zeros(3, dtype=torch.float64)
        for batch in range(2):
            a, b = grams[i, batch], grams[j, batch]
            for s, t, u, v in walks:
                there, back = a[s, t] * b[s, t], a[s, t] * a[t, u] * b[u, v] * b[v, s]
                found += torch.stack([there, back, a[s, t] * b[t, u] * a[u, v] * b[v, s]])
        found /= 2 * len(walks)
        assert float(squares[i, j]) == pytest.approx(float(found[0]))
        assert float(crossed[i, j]) == pytest.approx(max(0.0, float(found[1])))
        assert float(walked[i, j]) == pytest.approx(
            min(max(0.0, float(found[2])), float(crossed[i, j]))
        )


def test_the_diagonal_of_inner_products_is_not_used() -> None:
    grams = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    grams = grams + grams.mT
    other = grams + torch.eye(8) * 100
    assert norms_from_pairs(grams).norm(0, 0) == norms_from_pairs(other).norm(0, 0)


def test_a_square_below_zero_keeps_its_sign_and_says_so() -> None:
    first, second = (torch.ones(8, 8, dtype=torch.float64) for _ in range(2))
    second = -second
    found = norms_from_pairs(torch.stack([first, second])[:, None]).norm(0, 1)
    assert found.value == pytest.approx(-1)
    assert found.standard_error >= 1
    assert "not told from zero" in str(found)
    assert "8 samples" in str(norms_from_pairs(first[None, None]).norm(0, 0))


def test_zeros_are_zero_and_too_few_samples_are_refused() -> None:
    nothing = norms_from_pairs(torch.zeros(2, 1, 8, 8))
    assert nothing.norm(0, 1).value == nothing.norm(0, 1).standard_error == 0
    assert nothing.off_diagonal_share.value == 0
    with pytest.raises(ArgumentError, match="samples: expected at least 8"):
        norms_from_pairs(torch.zeros(2, 1, 7, 7))


def test_walks_that_cross_are_no_fewer_than_those_that_do_not() -> None:
    """tr K_iK_jK_iK_j ≤ tr K_i²K_j², which the unbiased estimates of both keep in three of four
    draws."""
    above = 0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        grams = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=draw)
        grams = (grams + grams.mT) * (1 - torch.eye(8))
        _, crossed, walked = _moments(grams)
        assert bool((walked <= crossed).all())
        above += int(((walked == crossed) & (crossed > 0)).sum())
    assert above > 3  # they would have been above
