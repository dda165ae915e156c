"""Data that does not fit: read anew for each product, in one order, and refused where it
changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.distributed import Processes
from hessblocks.curvature.products.operators import Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.repeatability import RepeatabilityWarning
from hessblocks.errors import ArgumentError, RunError
from tests.curvature.cases import stir
from tests.curvature.live_bytes import LiveBytes

LIMIT = 16_000
"""Bytes: enough for a row of the network, too few for the data."""
ROWS = 400


def network() -> nn.Module:
    torch.manual_seed(1)
    return stir(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))


def rows() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=draw, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (ROWS,), generator=draw))


def product(problem: Problem, operator: Any = Hessian) -> Tensor:
    group = parameter_groups(problem.model)["0.weight"]
    return operator(problem, group) @ torch.ones(group.size, 2, dtype=torch.float64)


class Loader:
    """Batches made when they are asked for; what was asked is counted."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.read = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.read += 1
        for x, y in self.batches:
            yield x.clone(), y.clone()


def pieces(count: int = 20) -> list[Any]:
    x, y = rows().tensors
    return list(zip(x.chunk(count), y.chunk(count), strict=True))


@pytest.mark.parametrize("operator", [Hessian, OuterProduct])
def test_what_is_read_anew_gives_the_numbers_of_what_is_kept(operator: Any) -> None:
    model, loader = network(), Loader(pieces())
    kept = Problem(model, pieces(), "classification")
    problem = Problem(model, loader, "classification", memory_limit=LIMIT)
    assert loader.read == 1
    assert len(problem.batches) == 20
    assert problem.valid == ROWS
    assert problem.value() == pytest.approx(kept.value(), rel=1e-13)
    before = loader.read
    first = product(problem, operator)
    assert loader.read > before
    torch.testing.assert_close(first, product(kept, operator), rtol=1e-12, atol=1e-15)
    again = loader.read
    assert torch.equal(product(problem, operator), first)
    assert loader.read == again + 1


def test_what_fits_is_read_once() -> None:
    loader = Loader(pieces())
    problem = Problem(network(), loader, "classification")
    assert torch.equal(product(problem), product(problem))
    assert (loader.read, problem.plan.hold) == (1, True)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data() -> None:
    """Four times the batches in the same memory, which is less than theirs."""
    model = network()
    peaks = {}
    for count in (25, 100):
        batches = (pieces(50) * 2)[:count]
        with LiveBytes() as live:
            product(Problem(model, Loader(batches), "classification", memory_limit=LIMIT))
        peaks[count] = live.peak
    assert peaks[100] < 1.2 * peaks[25]
    assert peaks[100] < 2 * sum(x.nbytes + y.nbytes for x, y in pieces())


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True},
        {"shuffle": True, "drop_last": True, "batch_size": 60},
        {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        {"sampler": WeightedRandomSampler([1.0, 2.0] * (ROWS // 2), ROWS)},
    ],
)
def test_a_loader_that_shuffles_is_kept_or_refused(settings: dict[str, Any]) -> None:
    loader = DataLoader(rows(), **{"batch_size": 40, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatabilityWarning)
        kept = Problem(network(), loader, "classification")
        assert torch.equal(product(kept), product(kept))
        problem = Problem(network(), loader, "classification", memory_limit=LIMIT)
        with pytest.raises(RunError, match=r"is not what it was .* shuffle=False"):
            product(problem)


def test_the_random_numbers_of_a_caller_are_left_alone() -> None:
    problem = Problem(
        network(), DataLoader(rows(), batch_size=40), "classification", memory_limit=LIMIT
    )
    before = torch.get_rng_state()
    product(problem)
    assert torch.equal(torch.get_rng_state(), before)


class Changing(Loader):
    """Other batches in the second reading than in the first."""

    def __init__(self, how: str) -> None:
        super().__init__(pieces())
        self._how = how

    def __iter__(self) -> Iterator[Any]:
        self.read += 1
        later = self.read > 1
        for number, (x, y) in enumerate(self.batches):
            if later and self._how == "fewer" and number == 13:
                return
            changed = later and number == 13
            yield (
                x + float(changed and self._how == "inputs"),
                ((y + 1) % 3 if changed and self._how == "labels" else y),
            )
        if later and self._how == "more":
            yield self.batches[0]


@pytest.mark.parametrize("how", ["inputs", "labels", "fewer", "more"])
def test_a_loader_that_changes_is_refused(how: str) -> None:
    number = 20 if how == "more" else 13
    problem = Problem(network(), Changing(how), "classification", memory_limit=LIMIT)
    with pytest.raises(RunError, match=rf"batch {number} \(counted from 0\) is not what it was"):
        product(problem)
    kept = Problem(network(), Changing(how), "classification")
    assert torch.equal(product(kept), product(kept))


def test_an_iterator_is_kept_or_refused() -> None:
    batches = pieces()
    problem = Problem(network(), iter(batches), "classification")
    listed = Problem(problem.model, batches, "classification")
    assert torch.equal(product(problem), product(listed))
    assert torch.equal(product(problem), product(problem))
    with pytest.raises(ArgumentError, match=r"an iterator can be read only once.*num_batches"):
        Problem(network(), iter(batches), "classification", memory_limit=LIMIT)
    few = Problem(network(), iter(batches), "classification", memory_limit=LIMIT, num_batches=2)
    assert len(few.batches) == 2


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_the_first_batches_are_taken(limit: int | None) -> None:
    model, batches = network(), pieces()
    few = Problem(model, batches[:7], "classification")
    for given in (batches, Loader(batches), iter(batches)):
        if limit and isinstance(given, Iterator):
            continue
        problem = Problem(model, given, "classification", num_batches=7, memory_limit=limit)
        assert len(problem.batches) == 7
        assert problem.valid == few.valid
        torch.testing.assert_close(product(problem), product(few), rtol=1e-12, atol=1e-15)
    assert len(Problem(model, batches, "classification", num_batches=99).batches) == 20
    with pytest.raises(ArgumentError, match="num_batches: expected at least 1, got 0"):
        Problem(model, batches, "classification", num_batches=0)


def test_batches_of_one_set_are_counted_and_taken_by_number() -> None:
    problem = Problem(network(), Loader(pieces()), "classification", memory_limit=LIMIT)
    assert [batch.number for batch in problem.batches] == list(range(20))
    assert torch.equal(problem.batches[3].inputs, pieces()[3][0])
    assert len(problem.plan.passes) == len(list(problem.plan.passes))
    with pytest.raises(IndexError):
        problem.batches[20]


def test_processes_share_what_is_read_anew() -> None:
    """The passes of both are all pieces once, in a share for each."""
    pieces_of = []
    for rank in (0, 1):
        problem = Problem(network(), Loader(pieces()), "classification", memory_limit=LIMIT)
        problem.processes = Processes(shard="batches", rank=rank, count=2)
        with patch.object(Processes, "least", lambda self, amount, device: amount):
            passes = problem.plan.passes
        assert len(passes) == len(list(passes))
        pieces_of.append([piece.inputs.clone() for piece in passes])
    assert abs(len(pieces_of[0]) - len(pieces_of[1])) <= 1
    both = torch.cat([*pieces_of[0], *pieces_of[1]])
    expected = rows().tensors[0]
    assert torch.equal(both.sort(0).values, expected.sort(0).values)


def test_group_norms_of_a_loader_are_those_of_a_list() -> None:
    model = network()
    groups = {"2.weight": parameter_groups(model)["2.weight"]}
    kept = hb.group_norms(Problem(model, pieces(), "classification"), groups, probes=4)
    read = hb.group_norms(
        Problem(model, Loader(pieces()), "classification", memory_limit=LIMIT), groups, probes=4
    )
    for name, parts in kept.items():
        for part, norm in parts.items():
            assert read[name][part].value == pytest.approx(norm.value, rel=1e-10)
