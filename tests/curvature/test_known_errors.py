"""Errors of torch and transformers: its own derivative where there is one, else a sentence."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForSequenceClassification

import hessblocks as hb
from hessblocks.errors import ArgumentError, HessblocksError, RunError

IDS = torch.tensor([[1, 4, 4], [0, 2, 5], [3, 3, 3], [5, 1, 0]])
LABELS = torch.tensor([0, 2, 1, 1])


class Words(nn.Module):
    """Embeds, mixes, classifies."""

    def __init__(self, *, sparse: bool, functional: bool = False, recomputed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, sparse=sparse)
        self.last = nn.Linear(4, 3)
        self.functional, self.recomputed = functional, recomputed

    def forward(self, ids: Tensor) -> Tensor:
        if self.recomputed:
            found = checkpoint(self.embed, ids, use_reentrant=False)
        elif self.functional:
            found = F.embedding(ids, 2 * self.embed.weight, sparse=self.embed.sparse)
        else:
            found = self.embed(ids)
        return self.last(found.tanh().mean(1))


@pytest.mark.parametrize("keywords", [{}, {"functional": True}, {"recomputed": True}])
@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sparse_embeddings_have_the_curvature_of_dense_ones(
    keywords: dict[str, bool], dtype: torch.dtype
) -> None:
    model, plain = (Words(sparse=sparse, **keywords).to(dtype) for sparse in (True, False))
    plain.load_state_dict(model.state_dict())
    found, expected = (
        hb.Hessian(hb.Problem(m, (IDS, LABELS), "classification")).dense() for m in (model, plain)
    )
    assert torch.equal(found, expected)
    assert found.abs().sum() > 0
    assert model.embed.sparse


def test_samples_of_sparse_embeddings() -> None:
    problem = hb.Problem(Words(sparse=True).double(), (IDS, LABELS), "classification")
    found = hb.group_norms(problem, parts=["outer"], method="sampled", probes=8)
    assert all(norms["outer"].value > 0 for norms in found.values())


class Bag(nn.Module):
    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(6, 4, **keywords), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.bag(ids).tanh())


@pytest.mark.parametrize("keywords", [{}, {"mode": "sum"}, {"mode": "max"}, {"sparse": True}])
def test_embedding_bags_are_refused_with_what_to_use(keywords: dict[str, Any]) -> None:
    problem = hb.Problem(Bag(**keywords).double(), (IDS, LABELS), "classification")
    with pytest.raises(RunError, match=r"_embedding_bag.*use nn.Embedding and .sum\(1\)"):
        hb.trace(problem, probes=4)


def lazy_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)), "0.weight"),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(3)), "1.weight"),
        (lazy_norm, "1.running_mean"),
    ],
)
def test_lazy_modules_are_refused_by_name(model: Callable[[], nn.Module], name: str) -> None:
    made, batch = model(), (torch.randn(4, 5), LABELS)
    with pytest.raises(ArgumentError, match=f"'{name}' has no shape yet.*call the model once"):
        hb.Problem(made, batch, "classification")
    with pytest.raises(ArgumentError, match="has no shape yet"):
        hb.parameter_groups(made)
    made(batch[0])
    assert hb.Problem(made.eval(), batch, "classification").entries


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize("loss", ["classification", "regression"])
@pytest.mark.parametrize("limit", [None, 30_000])
def test_batches_made_in_inference_mode_are_as_good_as_others(loss: str, limit: int | None) -> None:
    model, x = network(), torch.randn(4, 4, dtype=torch.float64)
    y = LABELS if loss == "classification" else torch.randn(4, 3, dtype=torch.float64)
    with torch.inference_mode():
        inside = x.clone(), y.clone()
    found, expected = (
        hb.Hessian(hb.Problem(model, batch, loss, memory_limit=limit)).dense()
        for batch in (inside, (x, y))
    )
    assert torch.allclose(found, expected, atol=1e-14)


def test_weights_made_in_inference_mode_are_refused_with_the_way_out() -> None:
    with torch.inference_mode():
        model = network()
    batch = torch.randn(4, 4, dtype=torch.float64), LABELS
    with pytest.raises(ArgumentError, match=r"'0.weight' was made under .*copy.deepcopy\(model\)"):
        hb.Problem(model, batch, "classification")
    assert hb.Hessian(hb.Problem(copy.deepcopy(model), batch, "classification")).dense().any()


def test_a_buffer_made_in_inference_mode_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().eval()
    with torch.inference_mode():
        model[1].running_var = torch.ones(5, dtype=torch.float64)
    problem = hb.Problem(model, (torch.randn(4, 4).double(), LABELS), "classification")
    with pytest.raises(RunError, match=r"made under torch.inference_mode\(\)"):
        hb.trace(problem, probes=4)


def test_a_classifier_without_padding_token_is_refused_in_a_sentence() -> None:
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_labels": 3}
    config = LlamaConfig(**sizes, num_attention_heads=2, intermediate_size=16)
    model = LlamaForSequenceClassification(config).eval()
    problem = hb.Problem(model, {"input_ids": IDS, "labels": LABELS}, "classification")
    with pytest.raises(HessblocksError, match=r"padding token .*model.config.pad_token_id"):
        hb.trace(problem, probes=4)
    model.config.pad_token_id = 15
    assert hb.trace(problem, probes=4).standard_error > 0


class Functional(nn.Module):
    """Uses a transform of torch.func in its forward pass."""

    def __init__(self, transform: Callable[..., Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.inner, self.transform = network(), transform

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.transform(lambda row: self.inner(row)))(x).reshape(len(x), -1)[:, :3]


def slope(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return torch.func.grad(lambda row: f(row).sum())


def assert_answered(model: nn.Module) -> None:
    batch = torch.randn(4, 4, dtype=torch.float64), LABELS
    found = hb.check_derivatives(hb.Problem(model, batch, "classification"))
    assert found.verdict == "right"


TRANSFORMS: Sequence[Callable[..., Any]] = (
    slope,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.hessian,
)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_by_torch_func_inside_forward_end_in_a_sentence(transform: Any) -> None:
    problem = hb.Problem(
        Functional(transform), (torch.randn(4, 4).double(), LABELS), "classification"
    )
    with pytest.raises(RunError, match=r"torch.func .*torch.autograd.grad"):
        hb.trace(problem, probes=4)


def test_vmap_inside_forward_is_answered() -> None:
    assert_answered(Functional(lambda f: f))


class Missing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(super().forward(x), torch.ones(3, 3).to(x), p=2)


def test_advice_on_flex_attention_stands_where_it_is_meant_alone() -> None:
    problem = hb.Problem(
        Missing(4, 3).double(), (torch.randn(4, 4).double(), LABELS), "classification"
    )
    with pytest.raises(RunError, match="differentiate a part of the model twice") as caught:
        hb.trace(problem, probes=4)
    assert "attn" not in str(caught.value)
    assert "flex" not in str(caught.value)


class Rooted(nn.Module):
    """A square root at 0, hidden by where."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        size = self.last.square()
        return self.first(x) + torch.where(size > 0, size.sqrt(), torch.zeros_like(size))


class Normed(nn.Module):
    """A norm at 0, whose first derivative torch calls 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.last.norm()


class Powered(Normed):
    """x^1.5 at 0: a first derivative, no second."""

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.last.abs() ** 1.5


ASKED: dict[str, Callable[[hb.Problem], Any]] = {
    "@": lambda p: hb.Hessian(p) @ torch.ones(hb.Hessian(p).shape[1], dtype=torch.float64),
    "dense": lambda p: hb.Hessian(p).dense(),
    "trace": lambda p: hb.trace(p, probes=4),
    "norm": lambda p: hb.frobenius_norm(hb.Hessian(p), probes=4),
    "eigenvalues": lambda p: hb.extreme_eigenvalues(p),
    "group norms": lambda p: hb.group_norms(p, probes=4),
    "map": lambda p: hb.curvature_map(p, probes=4),
}


@pytest.mark.parametrize("kind", [Rooted, Normed, Powered])
@pytest.mark.parametrize("asked", ASKED)
def test_a_second_derivative_that_is_nan_is_named(kind: type[nn.Module], asked: str) -> None:
    batch = torch.randn(4, 4, dtype=torch.float64), LABELS
    problem = hb.Problem(kind().double(), batch, "classification")
    with pytest.raises(RunError, match=r"the loss is finite, but its .*'last'.*at 0") as caught:
        ASKED[asked](problem)
    assert "float64" not in str(caught.value)


def test_vectors_that_are_not_finite_are_the_callers() -> None:
    problem = hb.Problem(network(), (torch.randn(4, 4).double(), LABELS), "classification")
    operator = hb.Hessian(problem)
    vector = torch.full((operator.shape[1],), float("nan"), dtype=torch.float64)
    assert (operator @ vector).isnan().any()


def test_a_nan_of_one_group_does_not_hide_another() -> None:
    model = Normed().double()
    batch = torch.randn(4, 4, dtype=torch.float64), LABELS
    group = hb.parameter_groups(model, "tensor")["first.weight"]
    problem = hb.Problem(model, batch, "classification")
    assert hb.Hessian(problem, group).dense().isfinite().all()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"bogus": torch.ones(4, 4).double(), "labels": LABELS}, "TypeError: .*not dict"),
        ((torch.ones(4, 4), LABELS), "RuntimeError: .*same dtype"),
        ((torch.ones(4, 3).double(), LABELS), ""),  # tests check shapes before torch does
        ((torch.ones(4, 4, dtype=torch.uint8), LABELS), ""),
    ],
)
def test_what_a_model_cannot_be_called_with_is_a_sentence(batch: Any, message: str) -> None:
    problem = hb.Problem(network(), batch, "classification")
    with pytest.raises(RunError, match=f"forward pass of batch 0.* failed: {message}"):
        hb.trace(problem)


def test_a_batch_that_does_not_fit_is_named() -> None:
    data = [(torch.ones(4, width).double(), LABELS) for width in (4, 4, 3)]
    with pytest.raises(RunError, match="forward pass of batch 2"):
        hb.Problem(network(), data, "classification").value()


def test_another_dtype_between_two_products_is_a_sentence() -> None:
    model = network()
    operator = hb.Hessian(hb.Problem(model, (torch.ones(4, 4).double(), LABELS), "classification"))
    vector = torch.ones(operator.shape[1]).double()
    _ = operator @ vector
    model.float()
    with pytest.raises(RunError, match=r"failed: RuntimeError: .*dtype"):
        _ = operator @ vector


class Open(nn.Module):
    """Takes entries of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(6, 4), nn.Linear(4, 6)

    def forward(self, input_ids: Tensor, labels: Any = None, **kwargs: Any) -> Tensor:
        found: Tensor = self.last(self.embed(input_ids).tanh())
        return found


@pytest.mark.parametrize(
    ("name", "message"), [("label", "; did you mean 'labels'"), ("mystery", "may be ignored$")]
)
def test_an_entry_that_a_model_may_ignore_is_named_once(name: str, message: str) -> None:
    problem = hb.Problem(Open().double(), {"input_ids": IDS, name: IDS})
    expected = f"batches: '{name}' is not an argument.*{message}"
    with pytest.warns(UserWarning, match=expected) as said:
        value = problem.value()
    assert len(said) == 1
    assert problem.value() == value


def test_an_entry_for_the_loss_alone_is_not_a_mistake() -> None:
    def losses(outputs: Tensor, batch: Any) -> Tensor:
        return outputs.square().mean((1, 2)) * batch["weights"]

    batch = {"input_ids": IDS, "weights": torch.ones(4), "num_items_in_batch": torch.tensor(4)}
    assert hb.Problem(Open().double(), batch, losses).value() > 0
