"""The studies' numbers against dense autodiff, closed forms and the authors' data."""

import math
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from hessblocks.curvature.exact.last_block import exact_attention_curvature
from hessblocks_studies.data.addition import addition_batch
from hessblocks_studies.engine.point import plain, seed_of
from hessblocks_studies.growth import growth_points
from hessblocks_studies.growth.addition_model import (
    LOSSES,
    addition_model,
    of_current_tokens,
    one_hot_squares,
)
from hessblocks_studies.growth.exact_norms import exact_norms
from hessblocks_studies.growth.growth_points import (
    GROUPS,
    DrawSettings,
    GrowthSettings,
    measure_growth,
)
from hessblocks_studies.growth.growth_summary import CURVE, averaged
from hessblocks_studies.hessian_paper import fig3a, heatmap, one_matrix
from hessblocks_studies.hessian_paper import linear_mlp as mlp
from hessblocks_studies.hessian_paper.heatmap import cell_means
from hessblocks_studies.shared import grouped

BATCH = addition_batch(3, seed=1)


def loss_of(model, name: str, weight: torch.Tensor, loss: str) -> torch.Tensor:
    outputs = functional_call(model, {name: weight}, (BATCH["input_ids"],), {"use_cache": False})
    if loss == "squares":
        return one_hot_squares(outputs, BATCH).mean()
    logits, labels = outputs.logits[:, :-1], BATCH["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def dense_hessian(model, name: str, loss: str) -> torch.Tensor:
    weight = dict(model.named_parameters())[name].detach()
    size = weight.numel()
    hessian = torch.autograd.functional.hessian(
        lambda flat: loss_of(model, name, flat.view_as(weight), loss), weight.flatten()
    )
    return hessian.view(size, size)


@pytest.mark.parametrize(
    ("block", "layers", "loss"),
    [
        ("softmax", 1, "cross-entropy"),
        ("softmax", 2, "cross-entropy"),
        ("softmax-pre-ln", 1, "cross-entropy"),
        ("linear", 1, "cross-entropy"),
        ("linear-alone", 1, "squares"),
        ("linear-alone", 2, "squares"),
    ],
)
@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_exact_norms_of_the_last_layer_are_those_of_dense_autodiff(
    block: str, layers: int, loss: str, sigma: float
) -> None:
    model = addition_model(block, layers=layers, width=6, sigma=sigma, seed=3)
    norms = exact_norms(model, BATCH, LOSSES[loss], GROUPS)
    for group in GROUPS:
        name = f"model.layers.{layers - 1}.attention.{group}.weight"
        truth = float(dense_hessian(model, name, loss).norm())
        assert norms[group, "full"].value == pytest.approx(truth, rel=1e-9)
        assert norms[group, "full"].method == "exact"


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0, 10.0])
def test_single_precision_is_double_precision_to_a_thousandth(sigma: float) -> None:
    (point,) = fig3a.STUDY.settings("laptop", 1)[:1]
    small = replace(point, width=32, sums=8, sigma=sigma)
    single, double = (measure_growth(replace(small, precision=p)) for p in ("float32", "float64"))
    for one, other in zip(single, double, strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-3)
        assert (one["value"] != other["value"]) == bool(other["value"])


@pytest.mark.parametrize(
    ("block", "loss"), [("softmax", "cross-entropy"), ("linear-alone", "squares")]
)
def test_estimates_of_earlier_layers_are_within_three_errors_of_dense_autodiff(
    block: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = addition_model(block, layers=2, width=6, sigma=0.5, seed=3)
    monkeypatch.setattr(
        "hessblocks_studies.growth.growth_points.addition_model", lambda *_, **__: model
    )
    monkeypatch.setattr(
        "hessblocks_studies.growth.growth_points.addition_batch", lambda *_, **__: BATCH
    )
    settings = GrowthSettings(
        study="x", block=block, loss=loss, layers=2, width=6, sums=3, sigma=0.5, seed=0, probes=24,
        precision="float64",
    )  # fmt: skip
    rows = measure_growth(settings)
    first = {row["group"]: row for row in rows if row["layer"] == 0 and row["part"] == "full"}
    for group in GROUPS:
        truth = float(dense_hessian(model, f"model.layers.0.attention.{group}.weight", loss).norm())
        row = first[group]
        assert row["method"] == "estimate"
        assert 0 < row["standard_error"] < 0.5 * truth
        assert abs(row["value"] - truth) <= 3 * row["standard_error"]


def test_current_tokens_as_targets_are_those_that_are_read() -> None:
    tokens, labels = BATCH["input_ids"], BATCH["labels"]
    changed = of_current_tokens(BATCH)
    assert torch.equal(changed["input_ids"], tokens)
    assert torch.equal(changed["labels"] == -100, labels == -100)
    asked = labels[:, 1:] != -100
    assert torch.equal(changed["labels"][:, 1:][asked], tokens[:, :-1][asked])
    assert not torch.equal(changed["labels"], labels)


def test_norms_with_the_current_token_as_target_are_those_of_dense_autodiff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Squares summed as in the authors' module, outputs and targets cut alike, over their
    number."""
    model = addition_model("linear-alone", layers=2, width=6, sigma=0.5, seed=3)
    monkeypatch.setattr(growth_points, "addition_model", lambda *_, **__: model)
    monkeypatch.setattr(growth_points, "addition_batch", lambda *_, **__: BATCH)
    settings = GrowthSettings(
        study="x", block="linear-alone", loss="squares", layers=2, width=6, sums=3, sigma=0.5,
        seed=0,
        probes=24, precision="float64",
    )  # fmt: skip
    assert "target" not in plain(settings)
    rows = {
        target: {
            (row["layer"], row["group"].split(" ")[0], row["part"]): row
            for row in measure_growth(replace(settings, target=target))
        }
        for target in (None, "current")
    }
    tokens = BATCH["input_ids"]
    target = torch.nn.functional.one_hot(tokens, 12)[:, -7:-1]

    def dense(layer: int, group: str) -> torch.Tensor:
        name = f"model.layers.{layer}.attention.{group}.weight"
        weight = dict(model.named_parameters())[name].detach()

        def loss(flat: torch.Tensor) -> torch.Tensor:
            given = {name: flat.view_as(weight)}
            outputs = functional_call(model, given, (tokens,), {"use_cache": False})
            return (outputs.logits[:, -7:-1] - target).square().sum() / target.numel()

        return torch.autograd.functional.hessian(loss, weight.flatten())

    for group in GROUPS:
        last, first = rows["current"][1, group, "full"], rows["current"][0, group, "full"]
        assert last["value"] == pytest.approx(float(dense(1, group).norm()), rel=1e-9)
        assert abs(first["value"] - float(dense(0, group).norm())) <= 3 * first["standard_error"]
        for layer in range(2):
            outer = [rows[target][layer, group, "outer"]["value"] for target in rows]
            assert outer[1] == pytest.approx(outer[0], rel=1e-12)
        functional = [rows[target][0, group, "functional"]["value"] for target in rows]
        assert functional[1] != pytest.approx(functional[0], rel=1e-3)
    assert {row["group"] for row in rows["current"].values()} == {
        "query (current token)",
        "value (current token)",
    }


def test_every_draw_of_a_model_differs_and_repeats() -> None:
    def weight(seed: int) -> torch.Tensor:
        model = addition_model("softmax", layers=1, width=64, sigma=0.3, seed=seed)
        return model.model.layers[0].attention.query.weight.detach()

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))
    assert float(weight(1).std()) == pytest.approx(0.8 / math.sqrt(64), rel=0.05)
    model = addition_model("softmax", layers=1, width=64, sigma=0.3, seed=0)
    assert float(model.model.token_embedding.weight.detach().std()) == pytest.approx(0.3, rel=0.1)
    assert float(model.model.position_embedding.weight.detach().std()) == pytest.approx(
        0.3, rel=0.1
    )
    assert model.lm_head.weight is not model.model.token_embedding.weight


@pytest.mark.parametrize("setup", mlp.SETUPS)
@pytest.mark.parametrize("layers", [1, 3])
def test_mlp_norms_are_those_of_dense_autodiff(setup: str, layers: int) -> None:
    """With the next token as target for one set-up, the current one for the other: it must not
    matter."""
    embedding, weights = mlp.network(setup, layers, 5, 0.7, seed=2)
    assert len(weights) == (layers + 1 if setup == "head" else layers)
    asked = BATCH["labels"][:, 1:] != -100
    next_token, current = BATCH["labels"][:, 1:][asked], BATCH["input_ids"][:, :-1][asked]
    target = torch.nn.functional.one_hot(next_token if setup == "head" else current, 12)

    def loss(layer: int, flat: torch.Tensor) -> torch.Tensor:
        h = embedding[current]
        for place, weight in enumerate(weights):
            h = h @ (flat.view(weight.shape) if place == layer else weight)
        squares = (h - target).square()
        return squares.mean() if setup == "head" else squares.sum()

    norms = mlp.outer_norms(setup, embedding, weights, BATCH)
    assert len(norms) == layers
    for layer, norm in enumerate(norms):
        hessian = torch.autograd.functional.hessian(
            lambda flat, layer=layer: loss(layer, flat), weights[layer].flatten()
        )
        assert norm == pytest.approx(float(hessian.norm()), rel=1e-10)


def test_weights_of_the_authors_mlp_are_drawn_as_torch_draws_linear_layers() -> None:
    _, weights = mlp.network("authors", 3, 128, 0.1, seed=0)
    theirs = torch.nn.Linear(128, 128, bias=False).weight.detach()
    for weight in weights:
        assert float(weight.std()) == pytest.approx((3 * 128) ** -0.5, rel=0.05)
        assert float(weight.abs().max()) <= 128**-0.5
        assert float(weight.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.01)
    assert [tuple(weight.shape) for weight in weights] == [(128, 128), (128, 128), (128, 12)]


@pytest.mark.parametrize("scores", ["softmax", "linear"])
def test_both_parametrisations_are_the_same_function(scores: str) -> None:
    models = one_matrix.equal_models(scores, width=8, seed=0)
    two, one = (models[name](BATCH["input_ids"]).logits for name in ("two-matrix", "one-matrix"))
    assert torch.allclose(one, two, rtol=0, atol=1e-12)


def test_pairs_of_eigenvalues_are_singular_values_of_the_gradient_over_the_root_of_the_width() -> (
    None
):
    width = 4
    models = one_matrix.equal_models("linear", width=width, seed=0)
    hessian = exact_attention_curvature(models["two-matrix"], BATCH)
    joint = one_matrix._joint(hessian, ("query", "key"), "functional")
    name = "model.layers.0.attention.query.weight"
    weight = dict(models["one-matrix"].named_parameters())[name].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(
        loss_of(models["one-matrix"], name, weight, "cross-entropy"), weight
    )
    sigma = torch.linalg.svdvals(gradient) / math.sqrt(width)
    expected = torch.cat([sigma, -sigma]).repeat_interleave(width).sort().values
    assert torch.allclose(torch.linalg.eigvalsh(joint), expected, atol=1e-12)
    assert one_matrix.pairing(expected.tolist()) == 0
    assert one_matrix.negative_share(expected.tolist()) == pytest.approx(0.5)


def test_cells_are_means_whatever_their_sizes() -> None:
    matrix = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    means = cell_means(matrix, torch.tensor([0, 0, 1]))
    assert torch.allclose(means, torch.tensor([[2.0, 3.5], [6.5, 8.0]], dtype=torch.float64))


def test_the_map_of_the_block_is_that_of_a_model_without_biases() -> None:
    """Entry by entry against dense autodiff over query and value, and cells that are means of
    means."""
    settings = DrawSettings(width=4, sums=2, seed=0)
    rows = heatmap.measure(settings)
    draw = seed_of("heatmap", 0)
    model = addition_model("softmax", layers=1, width=4, sigma=0.4, seed=draw)
    batch = addition_batch(2, seed=draw)
    for group in ("query", "value"):
        name = f"model.layers.0.attention.{group}.weight"
        weight = dict(model.named_parameters())[name].detach()

        def loss(flat: torch.Tensor, name=name, weight=weight) -> torch.Tensor:
            given = {name: flat.view_as(weight)}
            outputs = functional_call(model, given, (batch["input_ids"],), {"use_cache": False})
            labels = batch["labels"][:, 1:].flatten()
            return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels)

        hessian = torch.autograd.functional.hessian(loss, weight.flatten())
        mean = float(hessian.abs().clamp(min=1e-30).log10().mean())
        own = [row for row in rows if row["row_group"] == row["column_group"] == group]
        for kind, count in (("groups", 1), ("whole block", 64), ("whole model", 64)):
            values = [row["value"] for row in own if row["map"] == kind]
            assert len(values) == count
            assert sum(values) / count == pytest.approx(mean, rel=1e-6)
    biased = [row for row in rows if "bias" in row["row_group"]]
    assert {row["map"] for row in biased} == {"groups", "whole model"}
    groups = {row["row_group"] for row in rows if row["map"] == "groups"}
    assert groups == set(heatmap.PARAMETERS)
    cells = len({row["row"] for row in rows if row["map"] == "whole model"})
    assert cells == 16 + 16 + 4 * 8 + 16 + 8 + 16 + 4 + 16 + 6  # tokens to the bias of the head
    assert all(math.isfinite(row["value"]) for row in rows)
    second = heatmap.measure(replace(settings, seed=1))
    assert {row["map"] for row in second} == {"groups"}


@pytest.mark.slow
def test_the_paper_scale_of_figure_3a_agrees_with_the_authors_data() -> None:
    """At least 90 % of the means within 3 joint standard errors (released results of the paper)."""
    rows = [
        row for settings in fig3a.STUDY.settings("paper", None) for row in measure_growth(settings)
    ]
    theirs = grouped(fig3a.published(), *CURVE)
    agree = []
    for curve, members in grouped(rows, *CURVE).items():
        for (_, mean, error), row in zip(averaged(members), theirs[curve], strict=True):
            reach = 3 * math.hypot(error, float(row["standard_error"]))
            agree.append(abs(mean - float(row["value"])) <= reach)
    assert len(agree) == 120
    assert sum(agree) >= 0.9 * len(agree)
