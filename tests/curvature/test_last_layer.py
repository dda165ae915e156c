"""Every block from the last attention on, in closed form, against the dense Hessian of autodiff."""

import warnings
from functools import cache
from itertools import combinations_with_replacement

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Derf, DyT, LayerNorm, NoNorm, RMSNorm
from hessblocks.blocks.weights import Dense as DenseWeight
from hessblocks.blocks.weights import Reparametrised
from hessblocks.conventions import PARTS
from hessblocks.curvature.exact.block_hessian import LastBlockHessian
from hessblocks.curvature.last_layer import output_layer
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature.cases import Case
from tests.curvature.oracle import Dense, dense
from tests.curvature.test_last_block import CASES as OF_ATTENTION
from tests.curvature.test_last_block import WEIGHTS, of_preset, places

UNTIED = {"tie_word_embeddings": False}
CASES = {
    **{name: OF_ATTENTION[name] for name in ("gpt2", "one matrix", "grouped queries", "pre-ln")},
    "untied": lambda: of_preset("pre-ln", **UNTIED),
    **{
        name: lambda name=name: of_preset(name, **UNTIED)
        for name in (
            "post-ln",
            "parallel",
            "skipless",
            "sas",
            "sas-p",
            "sas-p-no-norm",
            "op",
            "modern",
        )
    },
    "bidirectional": lambda: of_preset("pre-ln", task="masked-lm", **UNTIED),
    "gated": lambda: of_preset("pre-ln", mlp=MLP(gated=True, activation="silu"), **UNTIED),
    "biases": lambda: of_preset(
        "pre-ln",
        attention=Attention(**dict.fromkeys(WEIGHTS, DenseWeight(bias=True))),
        mlp=MLP(input=DenseWeight(bias=True), output=DenseWeight(bias=True), activation="gelu"),
        norm=LayerNorm(),
        final_norm=LayerNorm(),
        **UNTIED,
    ),
    "gains of branches": lambda: of_preset(
        "pre-ln",
        attention_branch=Branch(gain=0.3, trainable=True),
        mlp_branch=Branch(gain=0.4, trainable=True, trainable_skip=True),
        **UNTIED,
    ),
    "norms of branches": lambda: of_preset(
        "pre-ln",
        attention_branch=Branch(norm=RMSNorm()),
        mlp_branch=Branch(norm=LayerNorm(), gain=0.3, trainable=True),
        **UNTIED,
    ),
    "parallel, norms of branches": lambda: of_preset(
        "parallel",
        norm=NoNorm(),
        attention_branch=Branch(norm=DyT()),
        mlp_branch=Branch(skip=0.0, norm=RMSNorm()),
        **UNTIED,
    ),
    "reparametrised": lambda: of_preset(
        "pre-ln",
        mlp=MLP(
            input=Reparametrised(update_gain=0.5, initial_gain=0.7),
            output=Reparametrised(update_gain=2.0, initial_gain=0.0),
        ),
        **UNTIED,
    ),
    "norms without gains": lambda: of_preset(
        "pre-ln",
        norm=RMSNorm(gain=None),
        attention=Attention(query_key_norm=RMSNorm(gain=None)),
        mlp=MLP(activation="relu-squared"),
        **UNTIED,
    ),
    "tanh for norms": lambda: of_preset("pre-ln", norm=DyT(), **UNTIED),
    "error function for norms": lambda: of_preset(
        "pre-ln", norm=Derf(), final_norm=Derf(), attention_branch=Branch(norm=Derf()), **UNTIED
    ),
    "embedding skip": lambda: of_preset(
        "parallel",
        embedding_skip=Branch(gain=0.8, trainable=True, skip=0.3, trainable_skip=True),
        **UNTIED,
    ),
    "embedding skip, post": lambda: of_preset("post-ln", embedding_skip=Branch(skip=0.3), **UNTIED),
    "alibi, sas": lambda: of_preset("sas", position="alibi", **UNTIED),
    "few classes": lambda: of_preset("pre-ln", width=8, **UNTIED),
}
# an oracle takes a second and each part another
cases = pytest.mark.parametrize(
    "name",
    everyday(CASES, "gpt2", "sas-p", "reparametrised", "few classes"),
)


@cache
def case_of(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


@cache
def solved(name: str) -> tuple[Case, Dense]:
    return case_of(name), dense(case_of(name))


@cache
def exact(name: str) -> LastBlockHessian:
    case = case_of(name)
    with warnings.catch_warnings():  # parts in front of the attention, which have no block
        warnings.filterwarnings("ignore", "exact_last_block: .* in front of the attention")
        return hb.exact_last_block(case.model, case.batches[0], case.loss)


def behind(case: Case, truth: Dense, group: str) -> Tensor:
    """Rows of the dense Hessian in the order of the closed form: (inputs, outputs), bias last."""
    modules = dict(case.model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    name = names[id(output_layer(case.model))] if group == "unembedding" else group
    if name not in modules:
        return truth.starts[name] + torch.arange(case.model.get_parameter(name).numel())
    module = modules[name]
    own = "update" if hasattr(module, "update") else "weight"
    shape = getattr(module, own).shape
    index = truth.starts[f"{name}.{own}"] + torch.arange(shape.numel()).view(shape)
    if not isinstance(module, Conv1D):
        index = index.T
    if getattr(module, "bias", None) is not None:
        bias = truth.starts[f"{name}.bias"] + torch.arange(module.bias.numel())
        index = torch.cat([index, bias[None]])
    return index.reshape(-1)


@cases
@pytest.mark.parametrize("part", PARTS)
def test_every_block_equals_dense_autodiff(name: str, part: str) -> None:
    case, truth = solved(name)
    found = exact(name)
    rows = {}
    for group in found.groups:
        if group == "unembedding" and found.tied:
            continue  # the dense matrix holds both uses of the weight
        of = places if group in found.attention.groups else behind
        rows[group] = of(case, truth, group)
    matrix = getattr(truth, part)
    every = torch.cat(list(rows.values()))
    whole = truth.full[every][:, every].norm()
    for row, column in combinations_with_replacement(rows, 2):
        expected = matrix[rows[row]][:, rows[column]]
        block = found.block(row, column, part)
        scale = expected.norm() if expected.norm() > 1e-3 * whole else 1e-3 * whole
        assert (block.dense() - expected).norm() <= 1e-12 * scale, (row, column)
        assert block.frobenius_norm() == pytest.approx(
            expected.norm().item(), rel=1e-10, abs=1e-13 * float(whole)
        )
        lower = found.block(column, row, part).dense()
        assert (lower - expected.T).norm() <= 1e-12 * scale, (column, row)


@cases
def test_every_parameter_from_the_last_attention_on_has_a_block(name: str) -> None:
    """All that changes the loss but not the input of the last attention."""
    case, truth = solved(name)
    found = exact(name)
    last = getattr(case.model, "transformer", None) or case.model.model
    layers = last.h if hasattr(last, "h") else last.layers
    before = [p for layer in layers[:-1] for p in layer.parameters()]
    before += [p for m in last.children() if isinstance(m, nn.Embedding) for p in m.parameters()]
    known = {id(p) for p in before}
    expected = sum(
        p.numel() for p in case.model.parameters() if p.requires_grad and id(p) not in known
    )
    # what stands before the attention: scale and shift inside tanh or erf, gains of a skip
    expected -= {"tanh for norms": 1, "error function for norms": 2, "embedding skip": 2}.get(
        name, 0
    )
    sizes = {group: found.block(group, group).shape[0] for group in found.groups}
    if found.tied:
        sizes.pop("unembedding")
    assert sum(sizes.values()) == expected
    assert len(truth.starts) > len(before)


def test_a_tied_unembedding_is_its_use_as_unembedding() -> None:
    """The block of a model whose two weights are equal, but apart."""
    case = case_of("pre-ln")
    tied = exact("pre-ln")
    apart = of_preset("pre-ln", **UNTIED).model
    state = {**case.model.state_dict()}
    state["lm_head.weight"] = state["model.token_embedding.weight"].clone()
    apart.load_state_dict(state)
    expected = hb.exact_last_block(apart, case.batches[0])
    assert (tied.tied, expected.tied) == (True, False)
    for part in PARTS:
        assert torch.equal(tied.dense(part), expected.dense(part))


@pytest.mark.parametrize(
    "name", everyday(["untied", "few classes", "sas-p"], "few classes", "sas-p")
)
def test_products_and_traces_agree_with_the_dense_matrix(name: str) -> None:
    found = exact(name)
    for part in PARTS:
        whole, matrix = found.whole(part), found.dense(part)
        columns = torch.randn(matrix.shape[1], 3, dtype=matrix.dtype)
        torch.testing.assert_close(whole @ columns, matrix @ columns, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(whole.diagonal(), matrix.diagonal(), rtol=1e-10, atol=1e-12)
        assert whole.frobenius_norm() == pytest.approx(float(matrix.norm()), rel=1e-10)
    assert torch.linalg.eigvalsh(found.dense("outer"))[0] > -1e-12


def test_a_memory_limit_changes_nothing() -> None:
    case = case_of("untied")
    few, many = (
        hb.exact_last_block(case.model, case.batches[0], memory_limit=limit).dense()
        for limit in (1 << 12, 1 << 29)
    )
    torch.testing.assert_close(few, many, rtol=1e-12, atol=1e-15)


def test_a_block_that_is_too_dear_is_refused_with_its_count() -> None:
    case = case_of("untied")
    found = hb.exact_last_block(case.model, case.batches[0], memory_limit=64)
    with pytest.raises(
        ArgumentError, match=r"blocks of .*mlp\.input.* need \d+ × \d+ × \d+ numbers"
    ):
        found.block("model.layers.1.mlp.input", "model.layers.1.mlp.input").frobenius_norm()


def test_weights_that_change_afterwards_are_noticed() -> None:
    case = of_preset("pre-ln", **UNTIED)
    found = hb.exact_last_block(case.model, case.batches[0])
    query = found.block("query", "query").frobenius_norm()
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.mul_(2.0)
    assert found.block("query", "query", "outer").frobenius_norm() <= 2 * query
    with pytest.raises(
        ArgumentError, match=r"weights or modules have changed since .*; make it again"
    ):
        found.block("query", "model.final_norm.weight").dense()


def test_dropout_is_off_also_for_blocks_that_are_asked_for_later() -> None:
    case = case_of("gpt2")
    case.model.train()
    for module in case.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    trained = hb.exact_last_block(case.model, case.batches[0])
    first = trained.block("query", "transformer.h.1.mlp.c_fc").dense()
    assert case.model.training
    case.model.eval()
    second = exact("gpt2").block("query", "transformer.h.1.mlp.c_fc").dense()
    assert torch.equal(first, second)


def test_heads_are_those_of_the_attention() -> None:
    found = exact("untied")
    both = [found.block("query", "query", head=head).frobenius_norm() for head in (0, 1)]
    assert all(norm > 0 for norm in both)
    with pytest.raises(ArgumentError, match=r"head: unembedding has no heads"):
        found.block("query", "unembedding", head=0)
    with pytest.raises(ArgumentError, match=r"group: .*'keys'"):
        found.block("keys", "query")


class Twice(nn.Module):
    """One layer, used two times."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.input = nn.Linear(6, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(self.input(x)))
        return out


def test_a_layer_that_is_used_twice_is_refused() -> None:
    case = of_preset("pre-ln", **UNTIED)
    layer = case.model.model.layers[-1]
    layer.mlp.output = nn.Sequential(layer.mlp.output, twice := nn.Linear(4, 4).double(), twice)
    with pytest.raises(
        ArgumentError, match=r"output.1.weight' and .*output.2.weight' are one weight"
    ):
        hb.exact_last_block(case.model, case.batches[0])
    layer.mlp.output = Twice(twice)
    with pytest.raises(ArgumentError, match=r"is used twice after the last attention"):
        hb.exact_last_block(case.model, case.batches[0])


def test_a_parameter_of_unknown_use_is_refused_by_name() -> None:
    case = of_preset("pre-ln", **UNTIED)

    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.matrix

    layer = case.model.model.layers[-1]
    layer.mlp.output = nn.Sequential(layer.mlp.output, Bilinear())
    with pytest.raises(ArgumentError, match=r"how '.*mlp\.output\.1\.matrix' enters"):
        hb.exact_last_block(case.model, case.batches[0])
