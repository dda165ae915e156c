"""`memory_limit=` is kept to and changes no number; a full memory and a wide vocabulary are met."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.groups.views import ParameterGroup
from hessblocks.curvature.losses.row_losses import CrossEntropy
from hessblocks.curvature.map import curvature_map
from hessblocks.curvature.products.graph import BatchGraph
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.sampled.grams import gram_matrices, plan_samples
from hessblocks.errors import ArgumentError, RunError
from tests.breadth import everyday
from tests.curvature.cases import CASES, stir
from tests.curvature.live_bytes import LiveBytes

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
Groups = dict[str, ParameterGroup]


def model_and_batch() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = hb.build("pre-ln", depth=2, width=16, heads=2, vocab_size=50, context=16)
    mask = (torch.arange(12)[None] < torch.randint(3, 12, (16, 1))).long()
    return stir(model), {"input_ids": torch.randint(0, 50, (16, 12)), "attention_mask": mask}


def product(kind: Any) -> Callable[[Problem, Groups], Tensor]:
    def run(problem: Problem, groups: Groups) -> Tensor:
        group = groups["layers.0.mlp.in"]
        columns = torch.linspace(-1, 1, 8 * group.size, dtype=torch.float64).view(-1, 8)
        found: Tensor = kind(problem, group) @ columns.cos()
        return found

    return run


def map_values(problem: Problem, groups: Groups) -> Tensor:
    some = {name: groups[name] for name in list(groups)[2:4]}
    rows = curvature_map(problem, some, "outer", probes=4).to_rows()
    return torch.tensor([row["value"] for row in rows])


def norm_values(problem: Problem, groups: Groups) -> Tensor:
    some = {name: groups[name] for name in list(groups)[2:4]}
    found = group_norms(problem, some, probes=4)
    return torch.tensor([e.value for parts in found.values() for e in parts.values()])


QUANTITIES = {
    **{kind.__name__: product(kind) for kind in (Hessian, OuterProduct, Functional)},
    "curvature_map": map_values,
    "group_norms": norm_values,
}


# products share all but their last step, and norms and maps their columns
@pytest.mark.parametrize("name", everyday(QUANTITIES, "Hessian", "curvature_map"))
def test_a_lower_limit_gives_the_same_numbers_and_a_lower_peak(name: str) -> None:
    model, batch = model_and_batch()
    groups, found, peaks = parameter_groups(model), [], []
    for limit in (None, 8_000_000, 1_600_000):
        problem = Problem(model, batch, memory_limit=limit)
        _ = problem.plan
        with LiveBytes() as live:
            found.append(QUANTITIES[name](problem, groups))
        peaks.append(live.peak)
        assert limit is None or live.peak < limit
    assert len(problem.plan.passes) > 2
    assert peaks[2] < peaks[1] <= peaks[0]
    for values in found[1:]:
        assert (values - found[0]).abs().max() < 1e-12 * found[0].abs().max()


@pytest.mark.parametrize(
    ("limit", "passes", "pieces"), [(4_000_000, 1, 1), (2_000_000, 2, 1), (600_000, 16, 3)]
)
def test_samples_take_all_rows_that_fit_and_stay_within_the_limit(
    limit: int, passes: int, pieces: int
) -> None:
    model, batch = model_and_batch()
    problem, groups = Problem(model, batch, memory_limit=limit), parameter_groups(model)
    sampling = plan_samples(problem, groups, 16)
    assert (len(sampling.plan.passes), len(sampling.pieces)) == (passes, pieces)
    with LiveBytes() as live:
        gram_matrices(problem, groups, sampling)
    assert live.peak < sampling.bytes < limit


@pytest.mark.parametrize("limit", ["1GB", -1, 0, 2.5e9, True])
def test_a_bad_limit_is_one_sentence(limit: Any) -> None:
    model, batch = model_and_batch()
    with pytest.raises(ArgumentError, match="memory_limit: expected a whole number of at least 1"):
        Problem(model, batch, memory_limit=limit)


def test_a_full_memory_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocation that fails is real: 64 TB."""
    model, batch = model_and_batch()
    problem = Problem(model, batch)
    operator = Hessian(problem, parameter_groups(model)["layers.0.mlp.in"])
    vector = torch.ones(operator.shape[1], dtype=torch.float64)
    expected = operator @ vector
    with monkeypatch.context() as full, problem.kept():
        full.setattr(BatchGraph, "full", lambda *_: torch.empty(1 << 46))
        with pytest.raises(RunError, match="out of memory; lower memory_limit"):
            _ = operator @ vector
        assert problem._graphs is None
    assert torch.equal(operator @ vector, expected)


def test_a_fault_that_is_none_of_memory_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_and_batch()
    operator = Hessian(Problem(model, batch), parameter_groups(model)["layers.0.mlp.in"])
    monkeypatch.setattr(BatchGraph, "full", lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        _ = operator @ torch.ones(operator.shape[1], dtype=torch.float64)


VOCABULARY, TOKENS = 50_257, 200


def test_a_wide_vocabulary_holds_few_arrays_of_the_size_of_the_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, TOKENS, VOCABULARY)
    loss = CrossEntropy(torch.randint(0, VOCABULARY, (1, TOKENS)))
    direction = torch.randn_like(logits)
    size = logits.numel() * logits.element_size()
    with LiveBytes() as building:
        derivatives = loss.derivatives(logits, 1 / TOKENS)
    with LiveBytes() as multiplying:
        product = derivatives.curvature(direction)
    assert building.peak < 2.1 * size  # p, ∂ℓ/∂f and what makes them
    assert multiplying.peak < 2.3 * size  # the product, once in pieces and once as a whole
    p = logits[0, 7].double().softmax(-1)
    u = direction[0, 7].double()
    expected = (p * u - p * (p @ u)) / TOKENS
    assert (product[0, 7] - expected).abs().max() < 1e-6 * expected.abs().max()


def test_a_product_at_a_wide_vocabulary_keeps_to_its_limit() -> None:
    torch.manual_seed(0)
    model = hb.build("sas", depth=1, width=4, heads=1, vocab_size=VOCABULARY, context=32)
    problem = Problem(model, torch.randint(0, VOCABULARY, (4, 32)), memory_limit=110_000_000)
    group = parameter_groups(model)["layers.0.attention.query"]
    _ = problem.plan
    assert len(problem.plan.passes) > 1
    with LiveBytes() as live:
        _ = OuterProduct(problem, group) @ torch.ones(group.size)
    assert live.peak < 110_000_000


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "classification", "callable"])
def test_the_end_of_a_block_gives_its_graphs_back_at_once(name: str) -> None:
    """In a circle they would stay until Python's next garbage collection, 1 GB for SmolLM2."""
    case = CASES[name]()
    problem = case.problem
    gc.collect()
    gc.disable()
    try:
        for kind in (Hessian, OuterProduct, Functional):
            operator = kind(problem)
            with operator.kept():
                operator @ torch.ones(operator.shape[1], dtype=torch.float64)
                assert problem._graphs is not None
                graphs = [weakref.ref(graph) for graph in problem._graphs[2]]
                assert graphs
            assert not any(graph() for graph in graphs)
    finally:
        gc.enable()


def test_what_was_measured_for_the_plan_is_freed() -> None:
    model, batch = model_and_batch()
    problem = Problem(model, batch)
    with LiveBytes() as live:
        _ = problem.plan
    assert live.now < live.peak / 20
