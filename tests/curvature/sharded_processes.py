"""Run by test_sharding.py in two processes: products of sharded models, against one process."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from benchmarks._resident import Resident
from hessblocks.curvature import custom_groups, group_norms, parameter_groups, sharded
from hessblocks.curvature.groups.roles import merge
from hessblocks.curvature.groups.views import ParameterGroup
from hessblocks.curvature.products import forward as forward_module
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.totals import Block, own_products
from hessblocks.curvature.sampled.fisher import EmpiricalFisher, MonteCarloFisher
from hessblocks.curvature.sharding import OwnEntries
from hessblocks.errors import HessblocksError
from tests.curvature.architectures import case_of
from tests.curvature.cases import CASES, Case, stir

KINDS = (Hessian, OuterProduct, Functional)


def everything(model: nn.Module) -> ParameterGroup:
    return merge("everything", list(parameter_groups(model).values()))


def gpt(layers: int = 8, **fields: Any) -> nn.Module:
    sizes = {"n_embd": 16, "n_head": 2, "vocab_size": 301, "n_positions": 16, **fields}
    config = GPT2Config(n_layer=layers, bos_token_id=0, eos_token_id=0, **sizes)
    return stir(GPT2LMHeadModel(config), size=0.05)


def deep() -> Case:
    """Eight blocks, and an embedding that is larger than any of them."""
    ids = torch.randint(0, 301, (3, 8))
    return Case(model=gpt(), batches=[{"input_ids": ids}])


def shallow() -> Case:
    return Case(model=gpt(2), batches=[{"input_ids": torch.randint(0, 301, (3, 8))}])


def frozen_case() -> Case:
    """The first layer and the position embedding do not take part."""
    case = shallow()
    for frozen in (case.model.transformer.h[0], case.model.transformer.wpe):
        frozen.requires_grad_(False)
    return case


class Checkpointed(nn.Module):
    """A layer that computes its own half again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self._half, x, use_reentrant=False)
        return self.outer(found)

    def _half(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x)) * x


class Stack(nn.Module):
    """Layers in a list, and a number of its own."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(3)])
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.gain * layer(x)
        return x


def checkpointed_case() -> Case:
    batches = [(torch.randn(rows, 5).double(), torch.randn(rows, 5).double()) for rows in (3, 1)]
    return Case(model=stir(Stack(Checkpointed)), batches=batches, loss="regression")


def padding_case() -> Case:
    """A padding index, whose row of the embedding has no gradient, and an unembedding of its own
    with a shift."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Embedding(11, 4, padding_idx=0), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 11)
    )
    ids = torch.randint(0, 11, (3, 4))
    ids[0, 0] = 0
    return Case(model=stir(model), batches=[(ids, ids)], loss="masked-lm")


def fsdp(model: nn.Module) -> nn.Module:
    for layer in model.transformer.h:
        fully_shard(layer)
    return fully_shard(model)


def errors(
    case: Case, cut: Callable[[nn.Module], Any] = sharded, **options: Any
) -> dict[str, float]:
    """Largest relative difference between one process and two."""
    whole = copy.deepcopy(case.model)
    group = everything(whole)
    alone = Problem(whole, case.batches, case.loss)
    together = Problem(cut(case.model), case.batches, case.loss, **options)
    vectors = torch.randn(
        group.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).to(next(whole.parameters()).dtype)
    found = {"value": abs(together.value() / alone.value() - 1)}
    direction = OuterProduct(alone, group).named_tensors(vectors / vectors.norm())
    one, two = (hb.loss_along(each, direction, [0.3]).losses[0] for each in (alone, together))
    found["along"] = abs(two / one - 1)
    kinds = KINDS if callable(case.loss) else (*KINDS, EmpiricalFisher, MonteCarloFisher)
    for kind in kinds:
        one, two = kind(alone, group) @ vectors, kind(together, group) @ vectors
        found[kind.__name__] = float((one - two).norm() / one.norm())
    return found


def counted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """The function, with an entry in the list for each call; a mock would hold its tensors."""

    def run(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return function(*args, **options)

    return run


def own_vectors() -> dict[str, float]:
    """Products of a deep model with vectors that no process holds whole, and what is whole of the
    weights."""
    case = deep()
    whole = copy.deepcopy(case.model)
    group = everything(whole)
    vectors = torch.randn(1, group.size, dtype=torch.float64)
    dist.broadcast(vectors, 0)
    expected = Hessian(Problem(whole, case.batches), group) @ vectors[0]
    problem = Problem(sharded(case.model), case.batches)
    own = OwnEntries.of(group, problem.cuts)
    mine = own.read(vectors)
    block = Block(rows=own.group, columns=own.group, parts=["full"])
    gathers: list[int] = []
    sums: list[int] = []
    with Resident().counted() as resident:
        own_products(problem, mine, block)
        with (
            patch.object(
                dist, "all_gather_into_tensor", counted(dist.all_gather_into_tensor, gathers)
            ),
            patch.object(dist, "reduce_scatter_tensor", counted(dist.reduce_scatter_tensor, sums)),
        ):
            found = own_products(problem, mine, block)["full"]
    held = sum(weight.numel() for weight in problem.weights.values())
    difference = found - own.read(expected[None])
    return {
        "error": float(difference.norm() / expected.norm()),
        "resident": (held + resident.peak) / group.size,
        "entries": found.shape[1] / group.size,
        "left": resident.now,
        "gathers": len(gathers),
        "sums": len(sums),
    }


def estimates(cut: bool) -> dict[str, Any]:
    """What estimators and maps find."""
    torch.manual_seed(0)
    case = CASES["pre-ln"]()
    if cut:
        sharded(case.model)
    problem, groups = Problem(case.model, case.batches), parameter_groups(case.model)
    key, mlp = groups["layers.1.attention.key"], groups["layers.1.mlp.in"]
    names = ("layers.1.attention.value", "final.norm")
    chosen = {name: groups[name] for name in names}
    mixed = custom_groups(
        case.model, {"mixed": ["*.1.*query.weight[1:3, ::2]", "*1.*_norm.weight[1:4]"]}
    )
    operator = Hessian(problem, mlp)
    heads = parameter_groups(case.model, "head")
    norms = group_norms(problem, chosen, probes=4)
    return {
        "norms": [estimate.value for parts in norms.values() for estimate in parts.values()],
        "map": [e.value for e in hb.curvature_map(problem, chosen, probes=4).table.values()],
        "sampled": [
            parts["outer"].value
            for parts in group_norms(
                problem, chosen, parts=["outer"], probes=8, method="sampled"
            ).values()
        ],
        "chosen": [
            parts["outer"].value
            for parts in group_norms(problem, chosen, parts=["outer"], probes=8).values()
        ],
        "trace": hb.trace(operator, probes=6).value,
        "ends": hb.extreme_eigenvalues(Hessian(problem, key), basis_size=8, tolerance=0.1).values,
        "block": Hessian(problem, rows=key, columns=groups["final.norm"]).dense(),
        "custom": Hessian(problem, mixed["mixed"]).dense(),
        "heads": Hessian(problem, heads["layers.1.attention.projection.head.1"]).dense(),
    }


def own_kernels() -> dict[str, Any]:
    """A sampled map where nothing that second derivatives need can be entered."""
    found = []
    for cut in (False, True):
        torch.manual_seed(0)
        case = shallow()
        if cut:
            sharded(case.model)
        with patch.multiple(forward_module, backward_pass=None, differentiable=None):
            groups = parameter_groups(case.model)
            problem = Problem(case.model, case.batches)
            norms = group_norms(problem, groups, parts=["outer"], probes=4, method="sampled")
        found.append([parts["outer"].value for parts in norms.values()])
    return {"alone": found[0], "sharded": found[1]}


def folder(place: Path) -> dict[str, Any]:
    """A model that is read from its folder row by row."""
    case = shallow()
    if dist.get_rank() == 0:
        case.model.save_pretrained(place, max_shard_size="20KB")
    dist.barrier()
    read: list[int] = []

    def from_folder(model: nn.Module) -> Any:
        found = sharded(place)
        read.append(sum(p.to_local().numel() for p in found.parameters()))
        return found

    found: dict[str, Any] = errors(case, from_folder)
    found["files"] = len(list(place.glob("*.safetensors")))
    found["share"] = read[0] / sum(p.numel() for p in gpt(2).parameters())
    return found


def changed() -> float:
    """Weights that an optimiser changes between two products, under FSDP2."""
    case = shallow()
    whole, model = copy.deepcopy(case.model), fsdp(case.model)
    group = everything(whole)
    problem = Problem(model, case.batches)
    vector = torch.ones(group.size, dtype=torch.float64)
    _ = Hessian(problem, group) @ vector
    for one in (whole, model):
        one.train(False)
        one(**case.batches[0], labels=case.batches[0]["input_ids"]).loss.backward()
        torch.optim.SGD(one.parameters(), lr=0.1).step()
    expected = Hessian(Problem(whole, case.batches), group) @ vector
    found = Hessian(problem, group) @ vector
    return float((found - expected).norm() / expected.norm())


class Unlisted(nn.Module):
    """No list of layers, and all in one part."""

    def __init__(self) -> None:
        super().__init__()
        self.all = Checkpointed()

    def forward(self, x: Tensor) -> Tensor:
        return self.all(x)


class Leaves(Checkpointed):
    """A layer that leaves what it found where others may read it."""

    def forward(self, x: Tensor) -> Tensor:
        self.left = self.inner(x)
        return self.outer(self.left)


class Reads(Stack):
    """A model that uses a layer's weight without running the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.layers[0].inner.weight


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except HessblocksError as error:
        return str(error)
    return "none"


def refusals() -> dict[str, Any]:
    rank = dist.get_rank()
    case = CASES["pre-ln"]()
    other = copy.deepcopy(case.model)
    if rank:
        with torch.no_grad():
            next(other.parameters()).mul_(2)
    found = {"weights": error_of(lambda: sharded(other))}
    model = sharded(case.model)
    found["again"] = error_of(lambda: sharded(model))
    found["vectors"] = error_of(lambda: Problem(model, case.batches, shard="vectors"))
    torch.manual_seed(0)
    code = sharded(stir(Stack(Checkpointed if rank else Leaves)))
    found["code"] = error_of(lambda: Problem(code, torch.ones(2, 5).double(), "regression"))
    found["layers"] = error_of(lambda: sharded(Unlisted()))
    found["many"] = error_of(lambda: sharded(nn.Linear(3, 1)))
    torch.manual_seed(0)
    pairs = [(torch.randn(4, 5).double(), torch.randn(4, 5).double())]
    for name, layers in (("leaves", lambda: Stack(Leaves)), ("reads", lambda: Reads(Checkpointed))):
        torch.manual_seed(0)
        stack = sharded(stir(layers()))
        found[name] = error_of(Problem(stack, pairs, "regression").value)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    two_dimensional = fully_shard(CASES["pre-ln"]().model, mesh=mesh)
    found["mesh"] = error_of(lambda: Problem(two_dimensional, case.batches))
    found["exact"] = error_of(lambda: hb.exact_last_block(model, case.batches[0]))
    return found


def of_one_process(case: Case) -> list[str]:
    """What each process sees when only the first one's loss is not finite."""
    model = sharded(case.model)
    ids = {"input_ids": torch.ones(2, 4, dtype=torch.long)}
    model.register_forward_hook(
        lambda module, inputs, output: (
            output.logits.mul_(torch.nan) if dist.get_rank() == 0 else None
        )
    )
    problem = Problem(model, ids)
    seen = ["", ""]
    dist.all_gather_object(seen, error_of(problem.value))
    return seen


def outside_vocabulary(case: Case) -> list[str]:
    """What each process sees when only the first one's rows name a token that there is not."""
    model, ids = sharded(case.model), torch.ones(2, 4, dtype=torch.long)
    problem = Problem(model, {"input_ids": ids})
    for part in problem.plan.passes:
        part.keywords["input_ids"].fill_(99 if dist.get_rank() == 0 else 1)
    seen = ["", ""]
    dist.all_gather_object(seen, error_of(problem.value))
    return seen


def half(case: Case) -> dict[str, float]:
    """Weights in bfloat16, against the same weights in float64."""
    case.model.bfloat16()
    exact = copy.deepcopy(case.model).double()
    group = everything(exact)
    vector = torch.randn(group.size, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = Hessian(Problem(exact, case.batches), group) @ vector.double()
    alone = Hessian(Problem(copy.deepcopy(case.model), case.batches), group) @ vector
    found = Hessian(Problem(sharded(case.model), case.batches), group) @ vector
    return {
        name: float((one.double() - expected).norm() / expected.norm())
        for name, one in (("alone", alone), ("sharded", found))
    }


def own_data(case: Case) -> dict[str, float]:
    """Each process has batches of its own, the first one more of them."""
    whole = copy.deepcopy(case.model)
    group = everything(whole)
    batches = [*case.batches, case.batches[0]]
    mine = batches[:2] if dist.get_rank() == 0 else batches[2:]
    alone = Problem(whole, batches, case.loss)
    together = Problem(sharded(case.model), mine, case.loss, shard="own")
    vector = torch.ones(group.size, dtype=torch.float64)
    found = {"value": abs(together.value() / alone.value() - 1)}
    for kind in KINDS:
        one, two = kind(alone, group) @ vector, kind(together, group) @ vector
        found[kind.__name__] = float((one - two).norm() / one.norm())
    return found


def own_batches() -> dict[str, float]:
    case = CASES["callable"]()
    return own_data(Case(model=case.model, batches=case.batches, loss=case.loss))


def estimates_of_both() -> dict[str, list[float]]:
    return {
        name: torch.as_tensor(values, dtype=torch.float64).tolist()
        for name, values in estimates(cut=True).items()
    }


def folder_of_both() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        places = [place]
        dist.broadcast_object_list(places, 0)
        found = folder(Path(places[0]))
        dist.barrier()
    return found


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "sas": lambda: errors(CASES["sas"]()),
    "callable": lambda: errors(CASES["callable"]()),
    "bert": lambda: errors(case_of("bert")),
    "gpt2": lambda: errors(shallow()),
    "frozen": lambda: errors(frozen_case()),
    "checkpointed": lambda: errors(checkpointed_case()),
    "padding": lambda: errors(padding_case()),
    "fsdp": lambda: errors(shallow(), fsdp),
    "own": own_batches,
    "folder": folder_of_both,
}
"""How a model may be shared."""
WORK: dict[str, Callable[[], Any]] = {
    **WAYS,
    "own vectors": own_vectors,
    "estimates": estimates_of_both,
    "changed": changed,
    "kernels": own_kernels,
    "half": lambda: half(shallow()),
    "refusals": refusals,
    "failures": lambda: of_one_process(CASES["pre-ln"]()),
    "outside": lambda: outside_vocabulary(CASES["pre-ln"]()),
}
"""What both processes find, by name; each begins with seed 0."""
