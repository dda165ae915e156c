"""A problem that is asked again answers for the model as it then is, whatever of it was changed."""

from __future__ import annotations

import array
import functools
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.curvature.model_state.form import LONG, checksums, form_of
from hessblocks.curvature.products import totals
from hessblocks.errors import ArgumentError
from tests.curvature.cases import stir

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 3, 1, 2, 0, 1])
FACTOR = 1.0


class Settings:
    """Read by name."""

    factor = 1.0


@dataclass
class Options:
    """A part of a model that is no module."""

    factor: float = 1.0


def read() -> float:
    return FACTOR


class Tempered(nn.Module):
    """A network whose outputs are scaled by much that is no parameter."""

    shared = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
        self.temperature, self.flipped = 1.0, False
        self.numbers: list[Any] = [1.0, {"inside": 1.0}]
        self.options = types.SimpleNamespace(deep=Options())
        self.scales, self.array = torch.ones(4).double(), np.ones(4)
        self.buffer, self.view = array.array("d", [1.0]), memoryview(bytearray(b"\1\0"))
        self.curve: Callable[[Tensor], Tensor] = torch.sin
        self.partial = functools.partial(torch.mul, 1.0)
        held = {"factor": 1.0}
        self.layers[1].register_forward_hook(lambda *given: given[2] * held["factor"])

    def factor(self) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x) / self.temperature * self.scales * torch.from_numpy(self.array)
        y = y * self.buffer[0] * self.view[0]
        y = self.curve(y) * self.numbers[0] * self.numbers[1]["inside"] * self.factor()
        y = y * self.options.deep.factor * FACTOR * Settings.factor * self.shared * read()
        found: Tensor = self.partial(-y if self.flipped else y)
        return found


def _closure(model: Any, patch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor(2.0).double()
    model.curve = lambda y: y * weight


def held_by(model: Any) -> dict[str, float]:
    """What the hook of a model reads, which nothing else holds."""
    (hook,) = model.layers[1]._forward_hooks.values()
    found: dict[str, float] = hook.__closure__[0].cell_contents
    return found


def _set(name: str, value: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda model, patch: setattr(model, name, value)


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], Any]] = {
    "number": _set("temperature", 3.0),
    "flag": _set("flipped", True),
    "list": lambda model, patch: model.numbers.__setitem__(0, 2.0),
    "dict in list": lambda model, patch: model.numbers[1].update(inside=2.0),
    "dataclass in namespace": lambda model, patch: setattr(model.options.deep, "factor", 2.0),
    "tensor that is no buffer": lambda model, patch: model.scales.mul_(2),
    "its data": lambda model, patch: model.scales.data.__setitem__(0, 7.0),
    "array": lambda model, patch: model.array.__setitem__(1, 2.0),
    "buffer": lambda model, patch: model.buffer.__setitem__(0, 2.0),
    "view of a buffer": lambda model, patch: model.view.__setitem__(0, 2),
    "function": _set("curve", torch.tanh),
    "closure": _closure,
    "partial": _set("partial", functools.partial(torch.mul, 2.0)),
    "what a hook holds": lambda model, patch: held_by(model).update(factor=2.0),
    "forward of an instance": lambda model, patch: setattr(
        model, "forward", lambda x: 2 * Tempered.forward(model, x)
    ),
    "forward of a part": _set("layers.1.forward", torch.sigmoid),
    "method of the class": lambda model, patch: patch.setattr(Tempered, "factor", lambda self: 2.0),
    "attribute of the class": lambda model, patch: patch.setattr(Tempered, "shared", 2.0),
    "global": lambda model, patch: patch.setattr(f"{__name__}.FACTOR", 2.0),
    "class named in forward": lambda model, patch: patch.setattr(Settings, "factor", 2.0),
    "module without weights": lambda model, patch: model.layers.__setitem__(1, nn.Sigmoid()),
    "hook": lambda model, patch: model.layers[1].register_forward_hook(lambda *g: 2 * g[2]),
    "hook in front": lambda model, patch: model.layers[2].register_forward_pre_hook(
        lambda module, given: (2 * given[0],)
    ),
    "hook removed": lambda model, patch: model.layers[1]._forward_hooks.clear(),
    "order of the weights": lambda model, patch: model.layers[0].weight.data.copy_(
        model.layers[0].weight.data.flip(0).clone()
    ),
}


def product(problem: hb.Problem, vector: Tensor) -> Tensor:
    return hb.Hessian(problem) @ vector


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_gets_the_product_of_a_new_problem(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stir(Tempered())
    if change == "hook removed":
        held_by(model)["factor"] = 3.0
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    vector = torch.ones(hb.Hessian(problem).shape[0]).double()
    before = product(problem, vector)
    if change == "forward of a part":
        model.layers[1].forward = torch.sigmoid
    else:
        CHANGES[change](model, monkeypatch)
    right = product(hb.Problem(model, [(X, Y)], loss="classification"), vector)
    found = product(problem, vector)
    assert torch.equal(found, right)
    assert (right - before).norm() > 1e-3 * before.norm()


UNSEEN = {
    *("its data", "array", "buffer", "view of a buffer", "what a hook holds"),
    *("method of the class", "attribute of the class", "global", "class named in forward"),
}
"""Changes that `kept` does not see, as docs/curvature.md says."""


@pytest.mark.parametrize(
    "change", [*sorted(CHANGES.keys() - UNSEEN), "order of a bias", "data of a buffer"]
)
def test_a_model_that_changes_inside_of_a_block_is_refused(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stir(Tempered())
    model.layers.append(nn.BatchNorm1d(4).double().eval())
    operator = hb.Hessian(hb.Problem(model, [(X, Y)], loss="classification"))
    vector = torch.ones(operator.shape[0]).double()
    with operator.kept():
        _ = operator @ vector
        if change == "order of a bias":
            bias = model.layers[2].bias
            bias.data.copy_(bias.data.flip(0).clone())
        elif change == "data of a buffer":  # which has a version of its own
            model.layers[3].running_var.data.mul_(2)
        elif change == "forward of a part":
            model.layers[1].forward = torch.sigmoid
        else:
            CHANGES[change](model, monkeypatch)
        with pytest.raises(ArgumentError, match=r"changed inside of kept\(\)"):
            _ = operator @ vector
    right = product(hb.Problem(model, [(X, Y)], loss="classification"), vector)
    assert torch.equal(operator @ vector, right)


def test_an_optimiser_step_or_another_batch_inside_of_a_block_is_refused() -> None:
    model, inputs = stir(Tempered()), X.clone()
    problem = hb.Problem(model, [(inputs, Y)], loss="classification")
    with problem.kept():
        before = problem.value()
        inputs.mul_(2)
        with pytest.raises(ArgumentError, match="changed inside"):
            problem.value()
    with problem.kept():
        assert problem.value() != before
        torch.nn.functional.cross_entropy(model(X), Y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(ArgumentError, match="changed inside"):
            hb.trace(problem, probes=4)


def test_graphs_are_kept_inside_of_a_block_alone() -> None:
    model = stir(Tempered())
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    operator = 2 * hb.Hessian(problem) + hb.OuterProduct(problem)
    vector = torch.ones(operator.shape[0]).double()
    right = operator @ vector
    assert problem._graphs is None
    with hb.Hessian(problem).kept():
        product(problem, vector)
        assert problem._graphs is not None
        graphs = problem._graphs[2]
        product(problem, vector)
        model.train()  # a pass is in evaluation mode all the same
        product(problem, vector)
        assert problem._graphs[2] is graphs
    assert problem._graphs is None
    with operator.kept(), operator.adjoint().kept():
        torch.testing.assert_close(operator @ vector, right, rtol=1e-12, atol=0)
        assert problem._graphs is not None


@pytest.mark.parametrize("estimator", ["trace", "diagonal", "density", "eigenvalues", "norms"])
def test_an_estimator_builds_one_graph(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hb.Problem(stir(Tempered()), [(X, Y)], loss="classification")
    built: list[int] = []
    ordinary = totals.BatchGraph
    monkeypatch.setattr(
        totals, "BatchGraph", lambda *a, **k: (built.append(1), ordinary(*a, **k))[1]
    )
    ask: dict[str, Callable[[], object]] = {
        "trace": lambda: hb.trace(problem, probes=8),
        "diagonal": lambda: hb.diagonal(problem, probes=8),
        "density": lambda: hb.spectral_density(problem, steps=4, probes=2),
        "eigenvalues": lambda: hb.extreme_eigenvalues(problem),
        "norms": lambda: hb.group_norms(problem, probes=4, parts=["full"]),
    }
    # one vector at a time
    monkeypatch.setattr("hessblocks.linalg.estimators.probes.default_limit", lambda device: 0)
    ask[estimator]()
    assert len(built) == 1


class Grows(nn.Module):
    """Keeps what it is called with in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log = nn.Linear(3, 4), types.SimpleNamespace(seen=[])

    def forward(self, x: Tensor) -> Tensor:
        self.log.seen.append(len(x))
        found: Tensor = self.layer(x).tanh()
        return found


def test_what_a_pass_itself_keeps_is_not_a_change() -> None:
    problem = hb.Problem(stir(Grows()), [(X, Y)], loss="classification")
    vector = torch.ones(16).double()
    with problem.kept():
        product(problem, vector)
        graphs = problem._graphs
        product(problem, vector)
        assert problem._graphs is graphs


@pytest.mark.parametrize("change", ["weight", "data", "label_smoothing", "ignore_index"])
def test_a_loss_module_that_changes_is_noticed(change: str) -> None:
    weight = torch.tensor([1.0, 2, 3, 4]).double()
    loss = nn.CrossEntropyLoss(weight if change in ("weight", "data") else None)
    model = stir(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)))
    problem = hb.Problem(model, [(X, Y)], loss)
    vector = torch.ones(hb.Hessian(problem).shape[0]).double()
    before = product(problem, vector)
    if change == "weight":
        weight[0] = 9
    elif change == "data":
        weight.data.copy_(weight.flip(0).clone())
    else:
        setattr(loss, change, {"label_smoothing": 0.3, "ignore_index": int(Y[0])}[change])
    found = product(problem, vector)
    assert torch.equal(found, product(hb.Problem(model, [(X, Y)], loss), vector))
    assert problem.value() == pytest.approx(loss(model(X), Y).item())
    assert (found - before).norm() > 1e-3 * before.norm()


def test_a_configuration_that_forward_reads_is_noticed() -> None:
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    model = stir(GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0)))
    problem = hb.Problem(model, torch.randint(0, 11, (2, 5)))
    before = form_of(model)
    assert form_of(model) == before
    with problem.kept():
        model.config.n_inner = 12
        assert form_of(model) != before
        with pytest.raises(ArgumentError, match="changed inside"):
            problem.value()


def test_long_lists_count_by_their_length() -> None:
    model: Any = nn.Linear(3, 4)
    model.words = list(range(LONG + 1))
    before = form_of(model)
    model.words[0] = 7
    assert form_of(model) == before
    model.words.append(0)
    assert form_of(model) != before


def test_versions_see_what_checksums_round_away() -> None:
    model = stir(nn.Linear(3, 4))
    model.weight.data[0, 0] = 1e18
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    sums = checksums(model.parameters())
    with problem.kept():
        with torch.no_grad():
            model.weight[1, 1] += 1e-3
        assert checksums(model.parameters()) == sums
        with pytest.raises(ArgumentError, match="changed inside"):
            problem.value()


def test_a_plan_is_of_the_model_as_it_is() -> None:
    model = stir(nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 4)))
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    problem.value()
    before = problem.plan.peak
    model[1] = stir(nn.Sequential(nn.Linear(4, 99), nn.Tanh(), nn.Linear(99, 4)))
    problem.value()
    assert problem.plan.peak > 2 * before


def test_fishers_notice_too() -> None:
    model = stir(Tempered())
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    fisher = hb.EmpiricalFisher(problem)
    vector = torch.ones(fisher.shape[0]).double()
    _ = fisher @ vector
    model.temperature = 3.0
    assert torch.equal(fisher @ vector, hb.EmpiricalFisher(problem) @ vector)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.cfloat]
)
@pytest.mark.parametrize("size", [3, 5000])
def test_checksums_see_order_and_single_entries(dtype: torch.dtype, size: int) -> None:
    values = (torch.arange(size) % 3 == 0).to(dtype)
    before = checksums([values])
    assert checksums([values.clone()]) == before
    for place in (0, size - 1):
        other = values.clone()
        other[place] = 1 - 1 * other[place] if dtype != torch.bool else ~other[place]
        assert checksums([other]) != before
    assert checksums([values.roll(1)]) != before
    assert checksums([values, values[:2].roll(1)]) != checksums([values, values[:2]])


def test_checksums_of_masks_and_of_what_overflows() -> None:
    mask = torch.full((3, 3), float("-inf")).triu(1)
    assert checksums([mask]) == checksums([mask.clone()])
    assert checksums([mask]) != checksums([mask.T])
    huge = torch.full((5000,), 3e38)
    assert len(checksums([huge])) == 1
    assert checksums([]) == ()


@pytest.mark.parametrize("asked", ["product", "several", "value", "sampled", "fisher", "exact"])
def test_autocast_around_a_question_is_refused(asked: str) -> None:
    model = stir(hb.build("pre-ln", depth=1, width=4, heads=2, vocab_size=7, context=6)).float()
    problem = hb.Problem(model, torch.randint(0, 7, (2, 5)))
    size = hb.Hessian(problem).shape[0]
    ask: dict[str, Callable[[], object]] = {
        "product": lambda: hb.Hessian(problem) @ torch.ones(size),
        "several": lambda: hb.Hessian(problem) @ torch.ones(size, 3),
        "value": problem.value,
        "sampled": lambda: hb.group_norms(problem, method="sampled", parts=["outer"], probes=64),
        "fisher": lambda: hb.EmpiricalFisher(problem) @ torch.ones(size),
        "exact": lambda: hb.exact_attention_curvature(model, torch.randint(0, 7, (2, 5))),
    }
    ask[asked]()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="autocast"):
        ask[asked]()


class CastInside(nn.Module):
    """Mixed precision that is the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = self.layers(x).float()
        return found


def test_several_vectors_are_as_each_alone_where_a_model_casts_inside() -> None:
    operator = hb.Hessian(
        hb.Problem(stir(CastInside()).float(), [(X.float(), Y)], "classification")
    )
    vectors = torch.randn(operator.shape[0], 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = torch.stack([operator @ vector for vector in vectors.T], dim=1)
        assert torch.allclose(operator @ vectors, alone)


def test_weights_from_a_cache_are_refused() -> None:
    model = stir(nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Linear(3, 4)))
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    vector = torch.ones(hb.Hessian(problem).shape[0]).double()
    with parametrize.cached():
        model(X)
        with pytest.raises(ArgumentError, match=r"parametrize\.cached\(\)"):
            product(problem, vector)
        plain = hb.Problem(stir(nn.Linear(3, 4)), [(X, Y)], loss="classification")
        product(plain, torch.ones(16).double())


class Again(nn.ModuleList):
    """Layers that run twice, in turn."""

    def __iter__(self) -> Any:
        return iter([*super().__iter__()] * 2)

    def __getitem__(self, places: Any) -> Any:
        return [*self][places] if isinstance(places, slice) else super().__getitem__(places)


@pytest.mark.parametrize("asked", [hb.exact_last_block, hb.exact_attention_curvature])
def test_a_last_layer_that_runs_twice_is_refused(asked: Any) -> None:
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    model: Any = stir(GPT2LMHeadModel(GPT2Config(**sizes)))
    ids = torch.randint(0, 11, (2, 5))
    asked(model, ids)
    model.transformer.h = Again(model.transformer.h)
    with pytest.raises(ArgumentError, match="one use of the last layer, and GPT2Block runs twice"):
        asked(model, ids)


def test_a_block_is_not_made_of_two_models() -> None:
    model = stir(hb.build("pre-ln", depth=1, width=4, heads=2, vocab_size=7, context=6))
    found = hb.exact_last_block(model, torch.randint(0, 7, (2, 5)))
    model.model.layers[0].mlp.register_forward_hook(lambda *given: 2 * given[2])
    with pytest.raises(ArgumentError, match="weights or modules have changed since"):
        found.block("unembedding", "model.final_norm.weight").dense()
