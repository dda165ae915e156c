"""The same measurement on the CPU and on an accelerator, number for number.

The accelerator is `ACCELERATOR` of the environment: cuda, or the device of `device.py`, which any
machine has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.curvature.cases import CASES, Case

NAME = os.environ.get("ACCELERATOR", "slab")
if NAME == "slab":
    import tests.accelerator.device  # noqa: F401


def case_on(name: str, device: str) -> Case:
    """A case of `tests.curvature.cases`, its model on the device; its batches stay on the CPU."""
    torch.manual_seed(0)
    case = CASES[name]()
    return replace(case, model=case.model.to(device))


def assert_alike(measured: Callable[[str], Any], tolerance: float = 1e-12) -> None:
    """What is measured on both devices is equal but for rounding."""
    wanted, found = (list(numbers(measured(device))) for device in ("cpu", NAME))
    assert len(wanted) == len(found) > 0
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() <= tolerance * max(1.0, float(one.norm()))


def numbers(value: Any) -> Iterator[Tensor]:
    """All numbers in a value, in its order."""
    if isinstance(value, Tensor):
        yield value.detach().cpu().double()
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from numbers(item)
    else:
        yield torch.tensor(float(value), dtype=torch.float64)
