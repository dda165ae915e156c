"""Checksums of tensors, which detect writes through `.data` and permutations.

A checksum is a weighted sum of the entries: each column of a row of 4,096 entries has a fixed
random weight, and so has each row. It reads a tensor once, like a sum.
"""

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

WIDTH = 4096
"""Entries per row of a checksum."""
ROWS = 1024
"""Rows that are cast at a time, in dtypes other than float32 and float64."""


def checksums(tensors: Iterable[Shaped[Tensor, "..."]]) -> tuple[float, ...]:
    """Compute one checksum per dtype and device; tensors without values are left out.

    Args:
        tensors: tensors of any shapes, dtypes and devices.

    Returns:
        Weighted sums of all entries, with different weights.

    Cost: as a sum of all entries.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if _has_values(tensor):
            alike.setdefault((tensor.dtype, tensor.device), []).append(_flat(tensor))
    with torch.no_grad():
        return tuple(_checksum(flats) for flats in alike.values())


def _has_values(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0  # FSDP frees whole weights


def _flat(tensor: Tensor) -> Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.detach().reshape(-1)


def _checksum(flats: Sequence[Tensor]) -> float:
    cuts = [len(flat) // WIDTH * WIDTH for flat in flats]
    ends = torch.cat([flat[end:] for flat, end in zip(flats, cuts, strict=True)])
    ends = nn.functional.pad(ends, (0, -len(ends) % WIDTH))
    large = [flat[:end] for flat, end in zip(flats, cuts, strict=True) if end]
    rows = torch.cat([_weighted(flat.view(-1, WIDTH)) for flat in (*large, ends)])
    checksum = float(rows.double() @ _weights(len(rows), torch.float64, rows.device))
    if math.isfinite(checksum) or all(bool(flat.isfinite().all()) for flat in flats):
        return checksum
    return _checksum([flat.nan_to_num(0.5, 1.5, -1.5) for flat in flats])  # masks hold −∞


def _weighted(rows: Tensor) -> Float[Tensor, " rows"]:
    """Compute the weighted sum of each row; cast dtypes other than float32 and float64."""
    if rows.dtype not in (torch.float32, torch.float64):
        wide = torch.float32 if rows.is_floating_point() else torch.float64
        if len(rows) > ROWS:
            return torch.cat([_weighted(chunk) for chunk in rows.split(ROWS)])
        rows = rows.to(wide)
    return rows @ _weights(WIDTH, rows.dtype, rows.device)


@functools.lru_cache(maxsize=64)
def _weights(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    draw = torch.Generator().manual_seed(0)
    sizes = torch.rand(count, generator=draw, dtype=torch.float64) + 0.5
    signs = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
    return (signs * sizes).to(device, dtype)
