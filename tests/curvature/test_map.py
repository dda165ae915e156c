"""The curvature map against the dense Hessian, block by block, and what is read from it."""

import itertools
import math
from functools import cache

import matplotlib.colors
import numpy as np
import pytest
import torch
from torch import nn

import hessblocks as hb
from hessblocks.conventions import PARTS
from hessblocks.curvature import custom_groups
from hessblocks.curvature.columns import ColumnSquares, column_squares
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.map import (
    CurvatureMap,
    _off_diagonal_share,
    combine_columns,
    curvature_map,
    heterogeneity,
)
from hessblocks.curvature.products.problem import Problem
from hessblocks.drawing.heatmap import ZERO, draw_heatmap
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg.estimators.estimates import Estimate
from tests.breadth import everyday
from tests.curvature.cases import CASES, Case
from tests.curvature.oracle import Dense, dense

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
PROBES = 24
EVERY = 10_000
"""More probes than any group has entries: everything is exact."""


@cache
def case_of(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


@cache
def solved(name: str) -> tuple[Case, Dense]:
    return case_of(name), dense(case_of(name))


def truth_of(name: str, part: str) -> dict[tuple[str, str], float]:
    case, matrices = solved(name)
    groups = parameter_groups(case.model)
    return {
        (row, column): float(matrices.block(part, groups[row], groups[column]).norm())
        for row in groups
        for column in groups
    }


def share_of(truth: dict[tuple[str, str], float]) -> float:
    outside = sum(norm**2 for (row, column), norm in truth.items() if row != column)
    return outside / sum(norm**2 for norm in truth.values())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "name", everyday(["sas-p", "gpt2", "classification"], "gpt2", "classification")
)
def test_every_block_lies_within_its_error(name: str, part: str) -> None:
    case = case_of(name)
    found = curvature_map(case.problem, parameter_groups(case.model), part, probes=PROBES, seed=1)
    truth = truth_of(name, part)
    assert set(found.table) == set(truth)
    off = {
        cell: abs(estimate.value - truth[cell]) / (estimate.standard_error + 1e-12)
        for cell, estimate in found.table.items()
    }
    assert sum(error > 3 for error in off.values()) <= 0.02 * len(off), off
    assert max(off.values()) < 4.5
    share = found.off_diagonal_share
    assert abs(share.value - share_of(truth)) <= 3 * share.standard_error + 1e-12


@pytest.mark.parametrize("part", PARTS)
def test_with_more_probes_than_entries_all_is_exact(part: str) -> None:
    case = case_of("regression")
    found = curvature_map(case.problem, parameter_groups(case.model), part, probes=EVERY)
    truth = truth_of("regression", part)
    for cell, estimate in found.table.items():
        assert estimate.method == "exact"
        assert estimate.standard_error == 0
        assert estimate.value == pytest.approx(truth[cell], rel=1e-10, abs=1e-14)
    assert found.off_diagonal_share.method == "exact"
    assert found.off_diagonal_share.value == pytest.approx(share_of(truth), rel=1e-10)


def test_a_small_group_makes_its_row_and_its_column_exact() -> None:
    case = case_of("sas-p")
    groups = parameter_groups(case.model)
    small = {name for name, group in groups.items() if group.size <= PROBES}
    assert small
    assert small != set(groups)
    found = curvature_map(case.problem, groups, probes=PROBES)
    truth = truth_of("sas-p", "full")
    for (row, column), estimate in found.table.items():
        exact = bool({row, column} & small)
        assert (estimate.method == "exact") == exact
        if exact:
            assert estimate.value == pytest.approx(truth[row, column], rel=1e-10, abs=1e-14)


def test_the_map_is_symmetric_and_uses_the_probes_of_both_columns() -> None:
    case = case_of("gpt2")
    found = curvature_map(case.problem, parameter_groups(case.model), probes=8)
    for (row, column), estimate in found.table.items():
        assert estimate == found.table[column, row]
        if estimate.method == "estimate" and estimate.value:
            assert estimate.probes == (8 if row == column else 16)


def test_the_parts_share_their_probes_and_a_row_alone_gives_the_same_number() -> None:
    case = case_of("sas")
    groups = parameter_groups(case.model)
    name = "layers.1.attention.query"
    problem = case.problem
    together = column_squares(problem, groups, name, probes=8, seed=3)
    alone = column_squares(problem, groups, name, rows=[name], parts=["full"], probes=8, seed=3)
    assert alone.squares["full"][name] == pytest.approx(together.squares["full"][name], rel=1e-9)
    assert list(alone.squares["full"]) == [name]


def test_columns_do_not_depend_on_the_other_groups_but_on_the_seed() -> None:
    case = case_of("sas")
    groups = parameter_groups(case.model)
    name = "layers.0.attention.query"
    few = {name: groups[name], "embedding.token": groups["embedding.token"]}
    squares = column_squares(case.problem, groups, name, probes=4).squares["full"][name]
    assert column_squares(case.problem, few, name, probes=4).squares["full"][name] == pytest.approx(
        squares, rel=1e-9
    )
    other = column_squares(case.problem, few, name, probes=4, seed=1).squares["full"][name]
    assert other != pytest.approx(squares, rel=1e-3)


def test_groups_of_equal_size_have_probes_of_their_own() -> None:
    """Equal probes would make block (i, j) as measured by j depend on that measured by i."""
    case = case_of("gpt2")
    groups = parameter_groups(case.model)
    names = ["layers.0.attention.query", "layers.0.attention.key"]
    few = {
        "a": groups[names[0]],
        "b": groups[names[0]],
    }
    a, b = (column_squares(case.problem, few, name, probes=4).squares["full"] for name in few)
    assert a["a"] != pytest.approx(b["a"], rel=1e-3)


@pytest.mark.slow
def test_ragged_passes_give_the_same_map(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("sas-p")
    groups = dict(list(parameter_groups(case.model).items())[:5])
    whole = curvature_map(case.problem, groups, probes=6)
    problem = case.problem
    object.__setattr__(problem.plan, "hold", False)
    object.__setattr__(problem.plan, "together", 1)
    monkeypatch.setattr("hessblocks.curvature.columns._together", lambda problem, parts: 2)
    cut = curvature_map(problem, groups, probes=6)
    for cell, estimate in whole.table.items():
        assert cut.table[cell].value == pytest.approx(estimate.value, rel=1e-9, abs=1e-13)


def test_the_share_covers_the_truth_as_its_error_says() -> None:
    case = case_of("regression")
    groups = parameter_groups(case.model)
    truth = share_of(truth_of("regression", "full"))
    problem = case.problem
    inside = []
    for seed in range(40):
        share = curvature_map(problem, groups, probes=7, seed=seed).off_diagonal_share
        assert 0 < share.standard_error < 0.2
        inside.append(abs(share.value - truth) <= 2 * share.standard_error)
    assert sum(inside) >= 0.85 * len(inside)


@pytest.mark.parametrize("size", [1.0, 1e-60, 1e60])
@pytest.mark.parametrize("count", [4, 5, 16])
def test_the_error_of_the_share_is_that_of_its_docstring(count: int, size: float) -> None:
    """Two columns; each deviation has Student's factor, which stands squared in the variance."""
    draw = torch.Generator().manual_seed(count)
    squares = {
        (row, column): torch.rand(count, dtype=torch.float64, generator=draw) + (row == column)
        for row in "ab"
        for column in "ab"
    }
    columns = [
        ColumnSquares(
            column=name,
            exact=False,
            squares={"full": {row: tuple((size**2 * squares[row, name]).tolist()) for row in "ab"}},
        )
        for name in "ab"
    ]
    group = parameter_groups(nn.Linear(2, 2))
    groups = dict(zip("ab", [*group.values()] * 2, strict=False))
    found = combine_columns(groups, columns, "full")
    share = _off_diagonal_share(columns, "full")
    assert found.names == ("a", "b")
    off, own = (
        [squares[r, c] for c in "ab" for r in "ab" if (r == c) == same] for same in (False, True)
    )
    total = float(sum(one.mean() for one in (*off, *own)))
    value = float(sum(one.mean() for one in off)) / total
    student = math.sqrt((count - 1) / (count - 3))
    errors = [
        student * float(((1 - value) * o - value * d).std()) / math.sqrt(count)
        for o, d in zip(off, own, strict=True)
    ]
    assert share.value == pytest.approx(value, rel=1e-12)
    assert share.standard_error == pytest.approx(math.hypot(*errors) / total, rel=1e-12)


def test_an_exact_column_replaces_the_estimates_of_its_blocks_in_the_share() -> None:
    exact = ColumnSquares(column="a", exact=True, squares={"full": {"a": (1.0, 2.0), "b": (4.0,)}})
    estimates = {"a": (9.0, 11.0, 13.0, 15.0), "b": (5.0, 6.0, 7.0, 8.0)}
    columns = [exact, ColumnSquares(column="b", exact=False, squares={"full": estimates})]
    share = _off_diagonal_share(columns, "full")
    assert share.value == pytest.approx(2 * 4 / (2 * 4 + 3 + 6.5), rel=1e-12)


class Sum(nn.Module):
    """x · w over two of 20 weights, of which signs see nothing in half of the cases."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        self.other = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        self.sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.weight[0] + self.sign * self.weight[7]
        return x * (seen + 3 * self.other[0] - self.other[1])


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.UnknownRoleWarning")
@pytest.mark.parametrize("sign", everyday([1.0, -1.0, 1e-3], 1.0))
def test_a_block_that_signs_miss_is_not_a_zero(sign: float) -> None:
    model = Sum(sign)
    x = torch.ones(1, 1, dtype=torch.float64)
    problem = Problem(model, (x, x), "regression")
    groups = custom_groups(model, {"a": ["weight"], "b": ["other"]})
    truth = 2 * (1 + sign**2)
    for seed in range(40):
        own = group_norms(problem, groups, probes=4, seed=seed, parts=["full", "functional"])
        assert 0.01 < own["a"]["full"].value / truth < 6
        assert own["a"]["functional"].value == own["a"]["functional"].standard_error == 0
        found = curvature_map(problem, groups, probes=4, seed=seed, method="probes")
        assert found.table["a", "b"].value > 0


def estimate(value: float, error: float = 0.0) -> Estimate:
    return Estimate(value=value, standard_error=error, method="estimate" if error else "exact")


@pytest.mark.parametrize("method", ["probes", "sampled"])
def test_groups_that_overlap_have_no_share(method: str) -> None:
    """Entries that stand in two groups would count twice in the whole."""
    case = case_of("gpt2")
    roles, heads = (parameter_groups(case.model, level) for level in ("role", "head"))
    key = "layers.0.attention.key"
    groups = {key: roles[key], f"{key}.head.0": heads[f"{key}.head.0"]}
    found = curvature_map(case.problem, groups, "outer", probes=4, method=method)
    assert found.off_diagonal_share is None
    apart = {name: heads[name] for name in heads if name.startswith(key)}
    found = curvature_map(case.problem, apart, "outer", probes=4, method=method)
    assert found.off_diagonal_share is not None


def test_heterogeneity_names_its_ends_and_the_zeros() -> None:
    found = heterogeneity(
        {"a": estimate(8.0, 0.8), "b": estimate(0.0), "c": estimate(2.0, 0.1), "d": estimate(4.0)}
    )
    assert (found.largest, found.smallest, found.zero_groups) == ("a", "c", ("b",))
    assert found.ratio.value == pytest.approx(4)
    assert found.ratio.standard_error == pytest.approx(4 * math.hypot(0.1, 0.05), rel=0.03)
    assert found.low < 4 < found.high
    nothing = heterogeneity({"b": estimate(0.0)})
    assert (nothing.ratio.value, nothing.largest, nothing.zero_groups) == (0.0, "", ("b",))
    exact = heterogeneity({"a": estimate(8.0), "b": estimate(2.0)})
    assert (exact.ratio.value, exact.low, exact.high, exact.ratio.method) == (4, 4, 4, "exact")


def small_map() -> CurvatureMap:
    case = case_of("classification")
    return curvature_map(case.problem, parameter_groups(case.model), "functional", probes=EVERY)


def test_the_map_of_a_model_names_the_group_without_influence() -> None:
    found = small_map()
    assert "unused" in found.heterogeneity.zero_groups
    diagonal = {
        name: norm
        for name in found.names
        if (norm := truth_of("classification", "functional")[name, name]) > 0
    }
    assert found.heterogeneity.ratio.value == pytest.approx(
        max(diagonal.values()) / min(diagonal.values())
    )


def test_rows_are_tidy() -> None:
    found = small_map()
    rows = found.to_rows()
    assert len(rows) == len(found.names) ** 2
    assert list(rows[0]) == ["row", "column", "part", "value", "standard_error", "method"]
    for row in rows:
        cell = found.table[row["row"], row["column"]]
        assert (row["value"], row["standard_error"], row["method"]) == (
            cell.value,
            cell.standard_error,
            cell.method,
        )
        assert row["part"] == "functional"


def test_the_plot_shows_every_block_zeros_apart() -> None:
    found = small_map()
    figure = found.plot()
    axis = figure.axes[0]
    norms, zeros = (image.get_array() for image in axis.images)
    values = np.array(
        [[found.table[row, column].value for column in found.names] for row in found.names]
    )
    assert np.array_equal(np.ma.getmaskarray(norms), values == 0)
    assert norms.compressed() == pytest.approx(values[values > 0])
    assert isinstance(axis.images[0].norm, matplotlib.colors.LogNorm)
    assert np.array_equal(zeros[..., 3] == 1, values == 0)
    painted = zeros[values == 0][0]
    assert tuple(painted) == pytest.approx(matplotlib.colors.to_rgba(ZERO))
    assert [label.get_text() for label in axis.get_yticklabels()] == list(found.names)
    assert "exactly zero" in [text.get_text() for text in axis.get_legend().get_texts()]


def test_layers_are_separated_and_forty_groups_stay_apart() -> None:
    layers = [None, *(layer for layer in range(3) for _ in range(13)), None]
    names = [f"layers.{layer}.attention.g{i}" for i, layer in enumerate(layers)]
    figure = draw_heatmap(names, layers, [[1.0] * 41] * 41, part="full")
    axis = figure.axes[0]
    lines = sorted(line.get_ydata()[0] for line in axis.lines if len(set(line.get_ydata())) == 1)
    assert lines == [0.5, 13.5, 26.5, 39.5]
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_a_map_of_zeros_can_be_drawn() -> None:
    figure = draw_heatmap(["a"], [None], [[0.0]], part="outer")
    figure.draw_without_rendering()
    assert len(figure.axes[0].images) == 1


def test_what_cannot_be_mapped_is_refused() -> None:
    case = case_of("classification")
    groups = parameter_groups(case.model)
    with pytest.raises(ArgumentError, match="'ful' is unknown; did you mean 'full'"):
        curvature_map(case.problem, groups, "ful")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at least one group"):
        curvature_map(case.problem, {})
    with pytest.raises(ArgumentError, match="at least 4"):
        curvature_map(case.problem, groups, probes=3)


def test_products_that_are_not_finite_name_the_group() -> None:
    torch.manual_seed(0)
    case = CASES["classification"]()
    groups = parameter_groups(case.model)
    problem = case.problem
    problem.plan  # noqa: B018
    with torch.no_grad():
        next(iter(case.model.parameters())).fill_(float("nan"))
    with pytest.raises(RunError, match="batch 0"):
        curvature_map(problem, groups)


class Root(nn.Module):
    """√(a b) at a = 1, b = 0: the value is finite, the slope is not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.full((1,), value)) for value in (1.0, 0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.a * self.b).sqrt()


def test_an_infinite_slope_behind_a_finite_loss_names_the_group() -> None:
    model = Root()
    problem = Problem(model, [(torch.ones(2, 1), torch.zeros(2, 1))], "regression")
    with pytest.raises(RunError, match=r"second derivative is NaN .*rows of 'a'"):
        curvature_map(problem, parameter_groups(model))


def test_products_whose_squares_leave_float64_are_refused() -> None:
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    rows = 1e90 * torch.ones(2, 1, dtype=torch.float64)
    problem = Problem(model, [(rows, torch.ones_like(rows))], "regression")
    with pytest.raises(RunError, match=r"products of outer with weight are not finite"):
        column_squares(problem, parameter_groups(model, "tensor"), "weight")


def test_columns_can_be_combined_from_files() -> None:
    case = case_of("regression")
    groups = parameter_groups(case.model)
    columns = [column_squares(case.problem, groups, name, probes=5) for name in groups]
    assert combine_columns(groups, columns, "outer") == curvature_map(
        case.problem, groups, "outer", probes=5, method="probes"
    )


def test_norms_of_many_groups_are_a_map_of_layers_that_names_the_others() -> None:
    model = hb.build("pre-ln", depth=2, width=8, heads=2, vocab_size=11, context=6)
    problem = hb.Problem(model, torch.randint(11, (2, 6)), loss="causal-lm")
    norms = hb.group_norms(problem, parts=["outer"], probes=4)
    axis = norms.plot().axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1"]
    assert "attention.query" in {label.get_text() for label in axis.get_xticklabels()}
    others = f"embedding.token: {norms['embedding.token']['outer'].value:.3g}"
    assert axis.get_xlabel().startswith(others)


def test_norms_of_many_groups_without_layers_are_points() -> None:
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(10)])
    problem = hb.Problem(net, (torch.randn(3, 2), torch.randn(3, 2)), loss="regression")
    norms = hb.group_norms(problem, parts=["outer"], probes=4)
    assert len(norms.plot().axes[0].get_xticklabels()) == len(norms) == 20
