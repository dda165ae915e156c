"""Orthogonal initial values are the same on every processor."""

import pytest
import torch
from torch import nn

from hessblocks.blocks.weights import _orthogonal

SHAPES = [(6, 6), (40, 20), (20, 40), (1, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_rounded_from_float64(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Of the draws of `nn.init.orthogonal_`, made orthogonal by Gram and Schmidt one by one."""
    weight = torch.empty(shape, dtype=dtype)
    torch.manual_seed(5)
    _orthogonal(weight)
    torch.manual_seed(5)
    drawn = torch.empty(shape, dtype=torch.promote_types(dtype, torch.float32)).normal_().double()
    columns = drawn if shape[0] >= shape[1] else drawn.T
    found: list[torch.Tensor] = []
    for column in columns.T:
        for one in (*found, *found):
            column = column - (one @ column) * one
        found.append(column / column.norm())
    expected = torch.stack(found, dim=1)
    expected = (expected if shape[0] >= shape[1] else expected.T).to(dtype)
    bound = 1e-13 if dtype == torch.float64 else 0.0
    torch.testing.assert_close(weight, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_those_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    ours, theirs = torch.empty(shape), torch.empty(shape)
    for fill, weight in ((_orthogonal, ours), (nn.init.orthogonal_, theirs)):
        torch.manual_seed(5)
        fill(weight)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    after = torch.rand(1)
    torch.manual_seed(5)
    _orthogonal(ours)
    assert torch.equal(after, torch.rand(1))  # no more and no fewer draws


@pytest.mark.parametrize("mark", ["loaded", "meta"])
def test_loaded_values_and_shapes_alone_are_left(mark: str) -> None:
    weight = torch.full((4, 4), 7.0, device="meta" if mark == "meta" else "cpu")
    weight._is_hf_initialized = mark == "loaded"  # type: ignore[attr-defined]
    state = torch.get_rng_state()
    _orthogonal(weight)
    assert torch.equal(state, torch.get_rng_state())
    assert mark == "meta" or bool((weight == 7).all())
