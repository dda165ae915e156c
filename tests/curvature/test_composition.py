"""Models made with other machinery of torch and transformers: compiled parts, flex attention,
experts, casts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature import PrecisionWarning, custom_groups
from hessblocks.errors import RunError
from tests.breadth import everyday
from tests.curvature.cases import VOCABULARY, gpt2_case, stir, tokens

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 6, "max_position_embeddings": 8,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
ROUTED = {"num_experts_per_tok": 2}
EXPERTS: dict[str, Callable[[], Any]] = {
    "mixtral": lambda: hf.MixtralConfig(**SIZES, **ROUTED, num_local_experts=3),
    "qwen2-moe": lambda: hf.Qwen2MoeConfig(
        **SIZES, **ROUTED, num_experts=3, moe_intermediate_size=4, shared_expert_intermediate_size=4
    ),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(
        **SIZES, **ROUTED, num_experts=3, moe_intermediate_size=4, head_dim=2
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


def products(model: nn.Module, batch: Any, count: int = 3) -> Tensor:
    """H, H_o and H_f times a few vectors, one below the other."""
    group = custom_groups(model, {"all": ["*"]})["all"]
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randn(group.size, count, generator=draw, dtype=torch.float64)
    problem = hb.Problem(model, batch)
    vectors = vectors.to(next(model.parameters()))
    kinds = (hb.Hessian, hb.OuterProduct, hb.Functional)
    return torch.cat([kind(problem, group) @ vectors for kind in kinds])


def model_of(config: Any, **options: Any) -> Any:
    torch.manual_seed(2)
    return stir(hf.AutoModelForCausalLM.from_config(config, **options))


def rows_in_float64(model: nn.Module) -> Any:
    """Llama's way of computing in float32 switched off: `.to(torch.float32)` and the like do
    nothing."""
    plain, softmax, single = Tensor.to, F.softmax, Tensor.float

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = plain(self, *args, **kwargs)
        return self if self.dtype == torch.float64 and found.dtype == torch.float32 else found

    def wide(x: Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        return softmax(x, *args, **kwargs)

    def stay(self: Tensor) -> Tensor:
        return self if self.dtype == torch.float64 else single(self)

    return (
        patch.object(Tensor, "to", to),
        patch.object(F, "softmax", wide),
        patch.object(Tensor, "float", stay),
    )


@pytest.mark.parametrize("name", everyday(EXPERTS, "qwen2-moe"))
@pytest.mark.parametrize("form", ["eager", "grouped_mm", "batched_mm"])
def test_a_mixture_of_experts(name: str, form: str) -> None:
    """Against differences of the gradient, with the casts to float32 inside switched off."""
    model = model_of(EXPERTS[name](), experts_implementation=form)
    other = model_of(EXPERTS[name](), experts_implementation="eager")
    other.load_state_dict(model.state_dict())
    batch = {"input_ids": tokens(2)}
    first, second, third = rows_in_float64(model)
    with first, second, third:
        found = products(model, batch, 1)
        expected = by_differences(other, batch)
    full, outer, functional = found[:, 0].chunk(3)
    assert (full - outer - functional).norm() <= 1e-13 * full.norm()
    assert (full - expected).norm() <= 1e-7 * full.norm()


def by_differences(model: nn.Module, batch: dict[str, Tensor], step: float = 1e-6) -> Tensor:
    """H times the vector of `products`, from two gradients."""
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    draw = torch.Generator().manual_seed(1)
    vector = torch.randn(sum(sizes), 1, generator=draw, dtype=torch.float64)[:, 0]
    slopes = []
    for share in (step, -2 * step):
        with torch.no_grad():
            for parameter, piece in zip(parameters, vector.split(sizes), strict=True):
                parameter += share * piece.view_as(parameter)
        logits = model(**batch).logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        slopes.append(torch.cat([f.flatten() for f in found]))
    return (slopes[0] - slopes[1]) / (2 * step)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_compiled_parts_run_as_they_are_written() -> None:
    case = gpt2_case()
    batch = {"input_ids": tokens(2)}
    expected = products(case.model, batch)
    layers = case.model.transformer.h
    layers[0].compile(backend="aot_eager")
    layers[1] = torch.compile(layers[1], backend="aot_eager")
    assert torch.equal(products(case.model, batch), expected)
    assert layers[0]._compiled_call_impl is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside transformers
def test_flex_attention_is_refused_in_a_sentence() -> None:
    model = model_of(hf.LlamaConfig(**SIZES, attn_implementation="flex_attention"))
    with pytest.raises(
        RunError, match=r"differentiate .* twice .*set_attn_implementation\('sdpa'\)"
    ):
        products(model, {"input_ids": tokens(2)})


def test_an_operation_without_second_derivative_is_named() -> None:
    class Distances(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(super().forward(x), torch.ones(1, 3).to(x))

    model = Distances(3, 3).double()
    problem = hb.Problem(
        model, (torch.ones(2, 3).double(), torch.ones(2, 1).double()), "regression"
    )
    group = custom_groups(model, {"all": ["*"]})["all"]
    with pytest.raises(RunError, match="_cdist_backward"):
        hb.Hessian(problem, group).dense()


CASTING: dict[str, Callable[[], Any]] = {
    "norms": lambda: hf.LlamaConfig(**SIZES),
    "softmax": lambda: hf.LlamaConfig(**SIZES, attn_implementation="eager"),
    "router": EXPERTS["mixtral"],
}


@pytest.mark.parametrize("name", CASTING)
def test_a_cast_inside_a_model_in_float64_is_reported_once_with_what_it_costs(name: str) -> None:
    model, batch = model_of(CASTING[name](), experts_implementation="eager"), tokens(2)
    problem, last = hb.Problem(model, batch), list(hb.parameter_groups(model).values())[-1]
    with pytest.warns(
        PrecisionWarning, match=r"compute in torch.float32: .* differ by \d\.\de-0[678]"
    ):
        hb.Hessian(problem, last).dense()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        hb.Hessian(problem, last).dense()


HALF: dict[str, Callable[[hb.Problem], Any]] = {
    "a product": lambda problem: (
        hb.Hessian(problem) @ torch.ones(10, dtype=weights_of(problem).dtype)
    ),
    "norms called exact": lambda problem: hb.group_norms(problem, parts=["full"], probes=16),
    "a map": lambda problem: hb.curvature_map(problem, probes=4, method="probes"),
    "a sampled map": lambda problem: hb.curvature_map(problem, part="outer", method="sampled"),
}


def weights_of(problem: hb.Problem) -> Tensor:
    return next(iter(problem.parameters.values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_reported_once_with_its_rounding(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1, bias=False)).to(dtype)
    batch = torch.randn(4, 3).to(dtype), torch.randn(4, 1).to(dtype)
    problem = hb.Problem(model, batch, "regression")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        HALF[name](problem)
        HALF[name](problem)
    ours = [str(one.message) for one in said if one.category is PrecisionWarning]
    assert len(ours) == (dtype != torch.float32)
    for sentence in ours:
        share = float(re.search(r"a product by (\S+) of itself", sentence)[1])
        assert torch.finfo(dtype).eps * 0.99 < share < 0.1


def test_a_mask_in_float32_rounds_nothing_and_is_not_said() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(super().forward(x)) * torch.tensor([1.0, 0.0, 1.0])

    model = Masked(3, 3).double()
    problem = hb.Problem(
        model, (torch.ones(2, 3).double(), torch.ones(2, 3).double()), "regression"
    )
    assert problem.plan.narrower == torch.float32
    hb.Hessian(problem, custom_groups(model, {"all": ["*"]})["all"]).dense()


def test_a_model_in_float32_is_not_measured() -> None:
    model = model_of(hf.LlamaConfig(**SIZES)).float()
    assert hb.Problem(model, tokens(2)).plan.narrower is None
