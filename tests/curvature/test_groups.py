"""Groups partition the trainable parameters, at every level."""

import pytest
import torch
from torch import nn

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.groups.views import whole
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES
from tests.curvature.oracle import check_partition


def trainable(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("level", ["role", "head", "tensor"])
@pytest.mark.parametrize("name", CASES)
def test_groups_partition_the_trainable_parameters(name: str, level: str) -> None:
    model = CASES[name]().model
    groups = parameter_groups(model, level) if hasattr(model, "config") else parameter_groups(model)
    check_partition(groups.values(), trainable(model))
    assert sum(g.size for g in groups.values()) == sum(p.numel() for p in trainable(model).values())


@pytest.mark.parametrize("name", [*hb.PRESETS, "gpt2"])
def test_nothing_of_a_known_model_is_unrecognised(name: str) -> None:
    groups = parameter_groups(CASES[name]().model)
    assert not [g.name for g in groups.values() if g.role == "other"]


def test_the_names_are_those_of_the_documentation() -> None:
    names = list(parameter_groups(CASES["sas"]().model))
    layer = ["attention.query", "attention.key", "gains", "mlp.in", "mlp.out", "norm"]
    expected = {"embedding.token", "embedding.position", "final.norm", "layers.0.attention.value"}
    expected |= {f"layers.{index}.{part}" for index in (0, 1) for part in layer}
    assert set(names) == expected


def test_an_unknown_model_is_cut_by_parameter() -> None:
    groups = parameter_groups(CASES["classification"]().model)
    assert list(groups) == ["unused", "first.weight", "first.bias", "second.weight", "second.bias"]


def test_a_head_reads_its_own_rows() -> None:
    model = CASES["pre-ln"]().model
    groups = parameter_groups(model, "head")
    weight = model.model.layers[0].attention.query.weight.detach()
    head = groups["layers.0.attention.query.head.1"]
    assert torch.equal(head.views[0].read(weight[None])[0], weight[2:4].flatten())
    weight = model.model.layers[0].attention.projection.weight.detach()
    head = groups["layers.0.attention.projection.head.1"]
    assert torch.equal(head.views[0].read(weight[None])[0], weight[:, 2:4].flatten())


def test_writing_and_reading_are_inverse() -> None:
    model = CASES["gpt2"]().model
    parameters = trainable(model)
    for group in parameter_groups(model).values():
        vectors = torch.randn(3, group.size, dtype=torch.float64)
        tensors, found = group.scatter(vectors, parameters), torch.empty_like(vectors)
        group.collect(tensors, found)
        assert torch.equal(found, vectors)
        group.collect(tensors, found, add=True)
        assert torch.equal(found, 2 * vectors)


def test_overlaps_and_gaps_are_named() -> None:
    model = CASES["classification"]().model
    groups = list(parameter_groups(model).values())
    with pytest.raises(ArgumentError, match=r"'first.bias' belong to no group"):
        check_partition([g for g in groups if g.name != "first.bias"], trainable(model))
    with pytest.raises(ArgumentError, match="shares entries"):
        check_partition([*groups, groups[0]], trainable(model))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'head'"):
        parameter_groups(CASES["classification"]().model, "heads")


def test_a_view_of_the_whole_is_the_whole() -> None:
    tensor = torch.randn(2, 3, 4)
    assert torch.equal(whole("w", tensor).read(tensor[None])[0], tensor.flatten())
    assert torch.equal(whole("w", tensor).positions(), torch.arange(24))
