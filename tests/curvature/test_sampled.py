"""H_o of all blocks from sampled gradients: the roots of losses, the vectors, the map, and what is
refused."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.conventions import PARTS
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import merge, parameter_groups
from hessblocks.curvature.losses.batches import unpack
from hessblocks.curvature.losses.row_losses import CrossEntropy
from hessblocks.curvature.losses.torch_losses import LOSSES, torch_loss
from hessblocks.curvature.map import CurvatureMap, curvature_map
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.totals import PrecisionWarning
from hessblocks.curvature.sampled import grams, one_pass
from hessblocks.curvature.sampled.grams import gram_matrices, plan_samples
from hessblocks.curvature.sampled.one_pass import signs
from hessblocks.drawing import draw_heatmap
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.estimators.pairs import norms_from_pairs
from tests.breadth import everyday
from tests.curvature.cases import CASES, Case
from tests.curvature.live_bytes import LiveBytes
from tests.curvature.oracle import Dense, dense
from tests.linalg.coverage import LEVELS

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@cache
def case_of(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


@cache
def matrices_of(name: str) -> Dense:
    return dense(case_of(name))


@cache
def solved(name: str) -> tuple[Case, dict[tuple[str, str], float]]:
    """A case and the norms of all blocks of its dense H_o."""
    case, matrices = case_of(name), matrices_of(name)
    groups = parameter_groups(case.model)
    return case, {
        (row, column): float(matrices.block("outer", groups[row], groups[column]).norm())
        for row in groups
        for column in groups
    }


LABELLED: dict[str, tuple[Any, Tensor]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), torch.tensor([0, 2, 1, 3])),
    "class weights, smoothing, ignored": (
        nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3, 0.5]), ignore_index=2, label_smoothing=0.2),
        torch.tensor([0, 2, 1, 3]),
    ),
    "soft labels, a sum": (nn.CrossEntropyLoss(reduction="sum"), torch.rand(4, 4)),
    "classes on axis 1": (nn.CrossEntropyLoss(label_smoothing=0.1), torch.randint(4, (4, 3))),
    "one class": (nn.CrossEntropyLoss(label_smoothing=0.1), torch.zeros(4, dtype=torch.long)),
    "log-probabilities": (nn.NLLLoss(), torch.tensor([0, 2, 1, 3])),
    "squares": (nn.MSELoss(), torch.randn(4, 4)),
    "binary, weighted": (
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 4])),
        torch.rand(4, 4),
    ),
    "Huber": (nn.HuberLoss(delta=0.5), torch.randn(4, 4)),
    "Poisson": (nn.PoissonNLLLoss(), torch.rand(4, 4)),
    "soft margin": (nn.SoftMarginLoss(), torch.randint(2, (4, 4)) * 2.0 - 1),
    "absolute": (nn.L1Loss(), torch.randn(4, 4)),
}


@pytest.mark.parametrize("name", LABELLED)
def test_a_root_times_its_transpose_is_the_curvature(name: str) -> None:
    torch.manual_seed(0)
    module, labels = LABELLED[name]
    shape = (4, 1) if name == "one class" else (4, 4, 3) if "axis" in name else (4, 4)
    logits = torch.randn(shape, dtype=torch.float64)
    loss = torch_loss(module)(unpack((logits, labels), logits.device))
    check_root(loss, logits)


@pytest.mark.parametrize("name", ["causal-lm", "regression"])
def test_named_losses_have_roots_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessblocks.curvature.losses.lazy_logits.CHUNK", 10)
    torch.manual_seed(0)
    logits = 2 * torch.randn(2, 5, 7, dtype=torch.float64)
    labels = torch.randint(7, (2, 5)) if name == "causal-lm" else torch.randn(2, 5, 7)
    loss = LOSSES[name](unpack((logits, labels), logits.device))
    assert isinstance(loss, CrossEntropy) == (name == "causal-lm")
    check_root(loss, logits)


def check_root(loss: Any, logits: Tensor) -> None:
    unit = torch.eye(logits.numel(), dtype=logits.dtype).view(-1, *logits.shape)
    curvature = loss.derivatives(logits, 0.3).curvature
    whole = torch.stack([curvature(one).flatten() for one in unit])
    root = loss.root(logits, 0.3)
    columns = torch.stack([root(one).flatten() for one in unit], dim=1)
    assert torch.allclose(columns @ columns.T, whole, rtol=1e-9, atol=1e-12)


# models of language take seven seconds; their samples are held to H_o exactly below
@pytest.mark.parametrize(
    "name",
    everyday(
        ["sas-p", "gpt2", "classification", "regression", "masked-lm"],
        "classification",
        "regression",
    ),
)
def test_every_block_lies_within_its_error(name: str) -> None:
    case, truth = solved(name)
    found = curvature_map(
        case.problem, parameter_groups(case.model), "outer", probes=64, seed=1, method="sampled"
    )
    assert set(found.table) == set(truth)
    assert found.method == "sampled"
    off = {
        cell: abs(estimate.value - truth[cell]) / (estimate.standard_error + 1e-12)
        for cell, estimate in found.table.items()
    }
    assert sum(error > 3 for error in off.values()) <= 0.02 * len(off), off
    assert max(off.values()) < 4.5
    assert all(row["method"] == "sampled" for row in found.to_rows())


class Units:
    """In the place of `signs`: sample k is the k-th unit vector over the logits of all batches."""

    def __init__(self, problem: Problem) -> None:
        with torch.no_grad():
            found = [
                problem.forward(b, problem.parameters, twice=False)[0].hidden.numel()
                for b in problem.batches
            ]
        self.first = [sum(found[:place]) for place in range(len(found))]
        self.count = sum(found)

    def __call__(self, batch: Any, shape: torch.Size, *_: Any, sample: int, **__: Any) -> Tensor:
        entries = shape.numel() // batch.rows
        place = sample - self.first[batch.number] - batch.first * entries
        unit = torch.zeros(shape.numel())
        if 0 <= place < shape.numel():
            unit[place] = 1
        return unit.view(shape)


@cache
def factors(name: str) -> list[Tensor]:
    """Jᵀ L of each group, (logits, entries), as the sampler itself multiplies them."""
    case = case_of(name)
    groups, problem = parameter_groups(case.model), case.problem
    units = Units(problem)
    sampling = replace(plan_samples(problem, groups, 8), size=units.count, batches=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(one_pass, "signs", units)
        whole = merge("all", list(groups.values()))
        vectors = torch.empty(sampling.size, whole.size, dtype=grams._dtype(problem))
        found = grams._samples(problem, whole, sampling, 0, 0, None, vectors)
    return list(found.split([group.size for group in groups.values()], dim=1))


@pytest.mark.parametrize(
    "name",
    everyday(
        ["gpt2", "sas-p", "classification", "regression", "masked-lm"],
        "gpt2",
        "classification",
        "regression",
    ),
)
def test_the_samples_are_those_of_the_outer_product(name: str) -> None:
    """Jᵀ L times its transpose is H_o, block by block."""
    case, matrices = case_of(name), matrices_of(name)
    groups = parameter_groups(case.model)
    for row, left in zip(groups, factors(name), strict=True):
        for column, right in zip(groups, factors(name), strict=True):
            expected = matrices.block("outer", groups[row], groups[column])
            assert torch.allclose(left.T @ right, expected, rtol=1e-9, atol=1e-12)


def coverage(name: str, size: int, seeds: int) -> None:
    """Bias and coverage over seeds against the assembled H_o."""
    case, known = solved(name)
    groups, root = parameter_groups(case.model), factors(name)
    truth = torch.tensor([[known[a, b] for b in groups] for a in groups], dtype=torch.float64)
    draw = torch.Generator().manual_seed(size)
    runs = []
    for _ in range(seeds):
        drawn = torch.randint(2, (size, len(root[0])), generator=draw).double() * 2 - 1
        samples = [drawn @ one for one in root]
        runs.append(norms_from_pairs(torch.stack([one @ one.T for one in samples])[:, None]))
    values = torch.stack([run.values for run in runs])
    errors = torch.stack([run.standard_errors for run in runs])
    there = truth > 1e-12 * truth.max()
    squares = (values.sign() * values.square() / truth.square() - 1)[:, there]
    mean = squares.mean(1)  # blocks share their samples, so that seeds are what is independent
    assert abs(float(mean.mean())) <= 3 * float(mean.std()) / seeds**0.5
    own = torch.eye(len(groups), dtype=torch.bool)
    for width, level in LEVELS.items():
        inside = ((values - truth).abs() <= width * errors).double()
        assert float(inside[:, there & own].mean()) >= level
        assert float(inside[:, there & ~own].mean()) >= level


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("name", everyday(["gpt2", "classification"], "classification"))
def test_bars_hold_against_an_assembled_outer_product(name: str, size: int) -> None:
    coverage(name, size, 200)


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("name", ["gpt2", "sas-p", "regression", "masked-lm", "classification"])
def test_bars_hold_against_assembled_outer_products(name: str, size: int) -> None:
    coverage(name, size, 400)


def test_the_cut_into_passes_changes_no_sample() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    whole = plan_samples(case.problem, groups, 8)
    pieces = [one for batch in case.problem.batches for one in batch.split(1)]
    assert len(pieces) > len(whole.plan.passes)
    found = gram_matrices(case.problem, groups, whole, seed=5).products
    object.__setattr__(whole.plan, "passes", pieces)
    cut = gram_matrices(case.problem, groups, whole, seed=5).products
    assert torch.allclose(found, cut, rtol=1e-12)
    assert not torch.allclose(found, gram_matrices(case.problem, groups, whole, seed=6).products)


def test_equal_rows_of_two_batches_have_signs_of_their_own() -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    batches = [unpack({"input_ids": ids}, ids.device, number=number) for number in (0, 1)]
    shape = torch.Size((2, 3, 5))
    drawn = [signs(one, shape, ids.device, seed=0, sample=0) for one in batches]
    assert set(drawn[0].unique().tolist()) == {-1, 1}
    rows = torch.cat(drawn).flatten(1)
    assert len(rows.unique(dim=0)) == 4
    again = torch.cat(
        [
            signs(one, torch.Size((1, 3, 5)), ids.device, seed=0, sample=0)
            for one in batches[1].split(1)
        ]
    )
    assert torch.equal(again, drawn[1])
    other = signs(batches[0], shape, ids.device, seed=0, sample=1)
    assert not torch.equal(other, drawn[0])


def test_signs_are_balanced_and_uncorrelated() -> None:
    ids = torch.ones(1, 1, dtype=torch.long)
    batch = unpack({"input_ids": ids}, ids.device)
    size = torch.Size((1, 4001))
    drawn = torch.cat([signs(batch, size, ids.device, seed=0, sample=s) for s in range(60)])
    flat = drawn.double()
    assert abs(float(flat.mean())) < 4 / flat.numel() ** 0.5
    gram = flat @ flat.T / 4001 - torch.eye(60)
    assert float(gram.abs().max()) < 5 / 4001**0.5


@pytest.mark.slow
def test_samples_that_do_not_fit_together_are_taken_in_batches() -> None:
    case, truth = solved("gpt2")
    groups = parameter_groups(case.model)
    one = sum(group.size for group in groups.values()) * 8
    free = plan_samples(case.problem, groups, 64)
    problem = Problem(case.model, case.batches, memory_limit=free.bytes - 40 * one)
    sampling = plan_samples(problem, groups, 64)
    assert free.batches == 1
    assert sampling.batches > 1
    assert sampling.batches * sampling.size >= 64
    assert sampling.bytes <= problem.memory_limit
    pairs = norms_from_pairs(gram_matrices(problem, groups, sampling).products)
    off = [
        abs(pairs.values[i, j] - truth[a, b]) / pairs.standard_errors[i, j]
        for i, a in enumerate(groups)
        for j, b in enumerate(groups)
    ]
    assert float(torch.stack(off).max()) < 4.5
    small = Problem(case.model, case.batches, memory_limit=4 * one)
    with pytest.raises(ArgumentError, match=r"8 sampled gradients .* are held together"):
        curvature_map(small, groups, "outer", method="sampled")


def test_groups_that_do_not_fit_together_are_taken_in_pieces() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    one = sum(group.size for group in groups.values()) * 8
    free = plan_samples(case.problem, groups, 8)
    limits = [free.bytes - less * one for less in range(12)]
    plans = {
        limit: plan_samples(Problem(case.model, case.batches, memory_limit=limit), groups, 8)
        for limit in limits
    }
    assert all(plan.bytes <= limit for limit, plan in plans.items())
    assert free.pieces == (tuple(groups),)
    cut = next(plan for plan in plans.values() if len(plan.pieces) > 1)
    assert [name for piece in cut.pieces for name in piece] == list(groups)
    assert len(cut.pieces) == 2
    told: list[int] = []
    whole = gram_matrices(case.problem, groups, free, seed=3).products
    found = gram_matrices(case.problem, groups, cut, seed=3, step=told.append).products
    assert torch.allclose(found, whole, rtol=1e-9)
    assert told == list(range(1, 17))


def test_one_batch_of_samples_is_held_at_a_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 2))
    problem = Problem(model, [(torch.randn(2, 64), torch.tensor([0, 1]))], loss="classification")
    groups = parameter_groups(model, "tensor")
    sampling = replace(plan_samples(problem, groups, 16), batches=4, size=16)
    samples = 16 * sum(group.size for group in groups.values()) * 4
    with LiveBytes() as live:
        gram_matrices(problem, groups, sampling)
    assert samples < live.peak < 1.5 * samples


def test_norms_of_own_blocks_are_those_of_the_map() -> None:
    case = case_of("sas-p")
    groups = parameter_groups(case.model)
    norms = group_norms(case.problem, groups, parts=["outer"], probes=4, seed=3, method="sampled")
    table = curvature_map(case.problem, groups, "outer", probes=4, seed=3, method="sampled").table
    assert {name: found["outer"] for name, found in norms.items()} == {
        name: table[name, name] for name in groups
    }


def test_the_way_is_chosen_by_its_cost_and_reported() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    problem = case.problem
    few = {name: groups[name] for name in list(groups)[:2]}
    assert curvature_map(problem, groups, "outer", probes=8).method == "sampled"
    assert curvature_map(problem, few, "outer", probes=8).method == "probes"
    assert curvature_map(problem, groups, "full", probes=4).method == "probes"
    assert curvature_map(problem, groups, "outer", probes=8, method="probes").method == "probes"
    everything = group_norms(problem, groups, probes=4)
    assert {found.method for parts in everything.values() for found in parts.values()} <= {
        "estimate",
        "exact",
    }
    alone = group_norms(problem, groups, probes=8, parts=["outer"])
    assert {found["outer"].method for found in alone.values()} == {"sampled"}


def test_a_callable_is_refused_or_left_to_probes() -> None:
    case = CASES["callable"]()
    groups = parameter_groups(case.model)
    with pytest.raises(ArgumentError, match="which a callable has not; use a loss by name"):
        curvature_map(case.problem, groups, "outer", method="sampled")
    assert curvature_map(case.problem, groups, "outer", probes=4).method == "probes"


@pytest.mark.parametrize("part", [part for part in PARTS if part != "outer"])
def test_other_parts_are_refused(part: Any) -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    with pytest.raises(ArgumentError, match="measures H_o alone"):
        curvature_map(case.problem, groups, part, method="sampled")
    with pytest.raises(ArgumentError, match="measures H_o alone"):
        group_norms(case.problem, groups, method="sampled")


def test_a_loss_that_is_not_convex_is_refused() -> None:
    model = nn.Linear(2, 3)
    loss = nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, -1.0, 1.0]))
    problem = Problem(model, [(torch.randn(4, 2), torch.rand(4, 3))], loss)
    with pytest.raises(ArgumentError, match="needs a convex loss"):
        curvature_map(problem, parameter_groups(model), "outer", method="sampled")


def test_numbers_that_are_not_finite_are_refused() -> None:
    case = CASES["gpt2"]()
    with torch.no_grad():
        next(case.model.parameters()).fill_(float("nan"))
    problem = Problem(case.model, case.batches)
    with pytest.raises(RunError, match=r"the loss of batch 0 .* is nan"):
        curvature_map(problem, parameter_groups(case.model), "outer", method="sampled")


@pytest.mark.filterwarnings("ignore:.*checkpointing_enable.*:FutureWarning")
def test_the_models_own_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second derivative is taken: attention is not replaced, and checkpointed parts are computed
    again."""
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=6, attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    batch = {"input_ids": torch.randint(11, (2, 6))}
    groups = parameter_groups(model.eval())
    plain = curvature_map(Problem(model, batch), groups, "outer", probes=4, method="sampled")
    monkeypatch.setattr("hessblocks.curvature.products.forward.differentiable", None)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    with pytest.warns(hb.curvature.RepeatabilityWarning):
        problem = Problem(model, batch)
    found = curvature_map(problem, groups, "outer", probes=4, method="sampled")
    assert model.training
    for cell, estimate in found.table.items():
        assert estimate.value == pytest.approx(plain.table[cell].value, rel=1e-3, abs=1e-7)


def test_weights_in_half_precision_are_sampled_with_sums_in_single() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    expected = curvature_map(case.problem, groups, "outer", probes=16, method="sampled")
    model = CASES["gpt2"]().model
    model.load_state_dict(case.model.state_dict())
    problem = Problem(model.bfloat16(), case.batches)
    with pytest.warns(PrecisionWarning, match="parameters are torch.bfloat16, .* 7.8e-03 of"):
        found = curvature_map(problem, groups, "outer", probes=16, method="sampled")
    for name in groups:
        own = found.table[name, name].value
        assert own == pytest.approx(expected.table[name, name].value, rel=0.1)


def test_a_map_with_blocks_below_zero_is_drawn_and_marked() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    maps = (
        curvature_map(case.problem, groups, "outer", probes=4, seed=seed, method="sampled")
        for seed in range(20)
    )
    found: CurvatureMap = next(
        one for one in maps if any(cell.value < 0 for cell in one.table.values())
    )
    legend = found.plot().axes[0].get_legend()
    assert legend is not None
    assert "not told from zero" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("groups", [3, 11, 40])
def test_what_the_colours_mean_stands_apart_from_the_title(groups: int) -> None:
    values = [
        [-1.0 if i < j else 0.0 if i > j else 1.0 for j in range(groups)] for i in range(groups)
    ]
    names = [f"layers.0.attention.key.head.{number}" for number in range(groups)]
    figure = draw_heatmap(names, [0] * groups, values, part="outer")
    figure.canvas.draw()
    axis = figure.axes[0]
    legend = axis.get_legend()
    assert legend is not None
    title = next(text for text in (axis.title, axis._left_title) if text.get_text())
    assert not legend.get_window_extent().overlaps(title.get_window_extent())


def test_each_batch_of_samples_draws_signs_of_its_own() -> None:
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    sampling = replace(plan_samples(case.problem, groups, 8), batches=2)
    products = gram_matrices(case.problem, groups, sampling).products
    assert products.shape[1] == 2
    assert not torch.allclose(products[:, 0], products[:, 1], rtol=1e-3)
