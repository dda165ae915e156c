"""Hugging Face architectures: groups cut where the model itself cuts, blocks equal to dense
ones."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.falcon.modeling_falcon import FalconAttention

from hessblocks.curvature.groups.roles import UnknownRoleWarning, parameter_groups
from hessblocks.curvature.products.operators import Hessian
from tests.breadth import everyday
from tests.curvature.architectures import FUSED, OPTIONS, case_of, model_of
from tests.curvature.oracle import check_partition, dense

CASTING = {"bloom", "phi3", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"}
CASTING |= {"gemma3_text"}
CASTING |= {"modernbert"}
"""Their softmax, norms or rotations compute in float32 whatever the weights are, and round
there."""

pytestmark = pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.AttentionBackendWarning",
    "ignore::hessblocks.curvature.PrecisionWarning",
)


@pytest.mark.parametrize("name", OPTIONS)
def test_groups_partition_and_every_parameter_is_recognised(name: str) -> None:
    model = model_of(name)
    parameters = dict(model.named_parameters())
    for level in ("role", "head", "tensor"):
        check_partition(parameter_groups(model, level).values(), parameters)
    groups = parameter_groups(model).values()
    assert not [group.name for group in groups if group.role == "other"]
    assert {"query", "key", "value", "projection", "mlp_in", "mlp_out", "norm"} <= {
        group.role for group in groups if group.layer == 0
    }


def test_a_base_model_may_have_any_name() -> None:
    """Llama's is called `transformer`, not `model`, where it answers questions."""
    model = AutoModelForQuestionAnswering.from_config(model_of("llama").config)
    with pytest.warns(UnknownRoleWarning, match=r"qa_outputs\.weight"):
        groups = parameter_groups(model)
    others = [group.name for group in groups.values() if group.role == "other"]
    assert others == ["qa_outputs.weight", "qa_outputs.bias"]


# two seconds each; where groups are cut is held for all by the two other tests
@pytest.mark.parametrize("name", everyday(OPTIONS, "gpt2", "llama", "falcon, multi-query", "bert"))
def test_a_groups_block_is_that_of_the_whole_dense_hessian(name: str) -> None:
    case = case_of(name)
    oracle, problem = dense(case), case.problem
    scale = oracle.full.abs().max()
    roles = parameter_groups(case.model)
    heads = [g for g in parameter_groups(case.model, "head").values() if ".head.1" in g.name]
    assert len(heads) >= 3 - (name == "falcon, multi-query") * 2
    for group in [*roles.values(), *heads]:
        block = Hessian(problem, group).dense()
        error = (block - oracle.block("full", group, group)).abs().max() / scale
        assert error < (1e-6 if name in CASTING else 1e-10), group.name


class _Captured(Exception):  # noqa: N818
    """Stops a forward pass once queries, keys and values are known."""


def _queries_keys_values(model: nn.Module, name: str) -> dict[str, Tensor]:
    """What the model itself uses, (batch, heads, tokens, head width) by role."""
    found: dict[str, Tensor] = {}

    def capture(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        found.update(query=query, key=key, value=value)
        raise _Captured

    split = {"bloom": (BloomAttention, "_reshape"), "falcon": (FalconAttention, "_split_heads")}
    owner = next((split[key] for key in split if name.startswith(key)), None)
    if owner is None:
        target = patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {"sdpa": capture})
    else:
        original = getattr(*owner)
        target = patch.object(*owner, lambda self, fused: capture(self, *original(self, fused)))
    with target, pytest.raises(_Captured):
        model(torch.tensor([[1, 2, 3]]))
    if owner is not None and owner[0] is FalconAttention:
        found = {role: tensor.transpose(1, 2) for role, tensor in found.items()}
    return found


@pytest.mark.parametrize("name", [*FUSED, "llama", "gemma"])
def test_a_head_is_the_entries_that_the_models_own_head_depends_on(name: str) -> None:
    model = model_of(name)
    groups = parameter_groups(model, "head")
    parameters = dict(model.named_parameters())
    for role, tensor in _queries_keys_values(model, name).items():
        names = [key for key in groups if key.startswith(f"layers.0.attention.{role}.head.")]
        shared = tensor.shape[1] // len(names)
        for number, key in enumerate(names):
            mine = tensor[:, number * shared]
            used = torch.autograd.grad(
                (mine * torch.randn_like(mine)).sum(),
                [parameters[p] for p in groups[key].parameters],
                retain_graph=True,
            )
            for parameter, gradient in zip(groups[key].parameters, used, strict=True):
                owned = [v for v in groups[key].views if v.parameter == parameter]
                places = torch.cat([view.positions() for view in owned]).sort().values
                assert torch.equal(gradient.flatten().nonzero().flatten(), places), key
