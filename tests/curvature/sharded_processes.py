"""Run by test_sharding.py in two processes: FSDP2 models, against one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.curvature import group_norms, parameter_groups
from hessblocks.curvature.products.problem import Problem
from tests.curvature.cases import stir
from tests.curvature.two_processes import error_of

NAME = "transformer.wte.weight"
IDS = torch.arange(40).view(5, 8) * 7 % 31
BATCHES = [{"input_ids": IDS[:2]}, {"input_ids": IDS[2:]}]


def gpt2() -> nn.Module:
    """Tied embeddings of 31 rows, which two processes divide unevenly, and fused projections."""
    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=31, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return stir(GPT2LMHeadModel(config), size=0.05).float()


def frozen() -> nn.Module:
    model: Any = gpt2()
    model.transformer.h[0].requires_grad_(False)
    return model


def blocks() -> nn.Module:
    return stir(
        hb.build("sas-p", depth=2, width=16, heads=2, vocab_size=31, context=8), size=0.05
    ).float()


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "frozen": frozen, "sas-p": blocks}


def fsdp(model: Any) -> nn.Module:
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    scalars = {p for p in model.parameters() if p.ndim == 0}  # fully_shard does not take them
    for layer in layers:
        fully_shard(layer, ignored_params=scalars)
    return fully_shard(model, ignored_params=scalars)


def numbers(model: nn.Module) -> dict[str, list[float]]:
    """The loss, norms of H_o of all blocks and heads, prices, and their standard errors."""
    problem = Problem(model, BATCHES)
    bill = hb.price(
        problem, hb.change_each(model, hb.rounded(bits=2), hb.pruned(share=0.3)), samples=8
    )
    several = bill.sum([name for name in bill if name.endswith("2 bits")])
    estimates = {
        "forecasts": [price.forecast for price in bill.values()],
        "full": [price.full for price in bill.values()],
        "together": [several.diagonal, several.full, several.cross, several.gradient],
        "map": list(
            hb.curvature_map(
                problem, parameter_groups(model, "head"), "outer", probes=8, method="sampled"
            ).table.values()
        ),
        "norms": [
            parts["outer"]
            for parts in group_norms(
                problem, parameter_groups(model), parts=["outer"], probes=8, method="sampled"
            ).values()
        ],
    }
    return {
        "loss": [problem.value()],
        **{name: [e.value for e in some] for name, some in estimates.items()},
        "errors": [e.standard_error for some in estimates.values() for e in some],
    }


def compared(model: nn.Module) -> dict[str, Any]:
    """Both processes' numbers, and what is left of the user's state."""
    whole = copy.deepcopy(model)
    alone, sharded = numbers(whole), fsdp(model)
    first = next(p for p in sharded.parameters() if p.requires_grad)
    first.grad = gradient = torch.zeros_like(first)
    sharded.train()
    together = numbers(sharded)
    after = all(module.training for module in sharded.modules())
    return {
        "alone": alone,
        "together": together,
        "restored": after and first.grad is gradient,
        "local": sum(p.numel() for p in Problem(sharded, BATCHES).parameters.values())
        / sum(p.numel() for p in whole.parameters() if p.requires_grad),
    }


def refusals() -> dict[str, str]:
    model: Any = fsdp(gpt2())
    problem = Problem(model, BATCHES)
    groups = parameter_groups(model)
    bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=2)), samples=4)
    moved = {name: p + 1 for name, p in problem.parameters.items()}
    found = {
        "product": error_of(lambda: hb.Hessian(problem)),
        "norms": error_of(lambda: group_norms(problem, groups)),
        "loss": error_of(lambda: problem.value(moved)),
        "check": error_of(lambda: bill.check(2)),
        "derivatives": error_of(lambda: hb.check_derivatives(problem)),
        "last block": error_of(lambda: hb.exact_last_block(model, BATCHES[0])),
        "shard": error_of(lambda: Problem(model, BATCHES, shard="batches")),
    }
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    replicated = fully_shard(gpt2(), mesh=mesh)
    found["mesh"] = error_of(lambda: Problem(replicated, BATCHES))
    model.set_gradient_divide_factor(1.0)
    found["factor"] = error_of(lambda: hb.price(problem, {"none": {NAME: torch.zeros_like}}))
    model = fsdp(gpt2())
    model.set_requires_gradient_sync(False)
    problem = Problem(model, BATCHES)
    found["synchronisation"] = error_of(
        lambda: hb.price(problem, {"none": {NAME: torch.zeros_like}})
    )
    own = [{"input_ids": IDS + torch.distributed.get_rank()}]
    found["batches"] = error_of(lambda: Problem(fsdp(gpt2()), own))
    found["unused"] = error_of(lambda: hb.price(*_unused()))
    return found


def _unused() -> tuple[Any, Any]:
    model: Any = gpt2()
    model.more = nn.Linear(2, 2)
    problem = Problem(fsdp(model), BATCHES)
    return problem, {"more": {"more.weight": torch.zeros_like}}


WORK: dict[str, Callable[[], Any]] = {
    **{name: lambda make=make: compared(make()) for name, make in MODELS.items()},
    "refusals": refusals,
}
"""What both processes compute, by name; each begins with seed 0."""
