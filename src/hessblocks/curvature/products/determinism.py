"""Check that a model is deterministic, before work is wasted.

Curvature is computed in evaluation mode from batches that are the same for every product, so most
causes of chance are removed; what that changes is said, and what cannot be removed is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from hessblocks.curvature.losses import Readout
from hessblocks.errors import RunError

SAME = 1e-4
"""Largest change between two passes, as a share of the largest logit, that rounding may explain."""


class RepeatabilityWarning(UserWarning):
    """Warning that something random or changing was set aside; the message says what."""


def notice_randomness(model: nn.Module, batches: Any) -> None:
    """Warn of what is set aside, so that a result can be understood and repeated.

    Args:
        model: as it was given; its modules may be in training mode.
        batches: as they were given, before they are read.
    """
    for message in (*_model_notices(model), *_loader_notices(batches)):
        warnings.warn(f"curvature: {message}", RepeatabilityWarning, stacklevel=3)


def check_same(first: Readout, second: Readout) -> None:
    """Refuse a model whose logits differ between two passes over the same rows.

    Raises:
        RunError: they differ by more than rounding.
    """
    scale = change = 0.0
    for one, other in zip(first.pieces(), second.pieces(), strict=True):
        scale = max(scale, float(one.abs().max()))
        change = max(change, float((one - other).abs().max()))
    if change > SAME * scale:
        raise RunError(
            f"curvature: two passes over the same row differ by {change:.2g} (largest logit "
            f"{scale:.2g}) although the model is in evaluation mode, so nothing computed from it "
            "can be repeated; look for torch.nn.functional.dropout without training=self.training, "
            "or other random numbers"
        )


def _model_notices(model: nn.Module) -> Iterator[str]:
    training = [(name, module) for name, module in model.named_modules() if module.training]
    if dropout := [name for name, module in training if _dropped(module) > 0]:
        yield (
            f"dropout is switched off ({_some(dropout)} in training mode); "
            "the loss is that of model.eval()"
        )
    if norms := [name for name, module in training if isinstance(module, _BatchNorm)]:
        yield (
            f"batch norm uses its running statistics ({_some(norms)} in training mode), "
            "since those of a batch would tie its rows together"
        )


def _dropped(module: nn.Module) -> float:
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):  # dropout is a number of theirs
        return module.dropout
    return module.p if isinstance(module, _DropoutNd) else 0


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0] or 'the model'}{more}"


def _loader_notices(batches: Any) -> Iterator[str]:
    if not isinstance(batches, DataLoader):
        return
    sampler = batches.sampler
    seeded = getattr(sampler, "generator", None) is not None or batches.generator is not None
    if isinstance(sampler, RandomSampler | WeightedRandomSampler) and not seeded:
        dropped = ", and it drops a random last batch" if batches.drop_last else ""
        yield (
            f"the loader shuffles{dropped}; its batches are taken in one order, so that all "
            "products see the same, but another run sees others: give it "
            "generator=torch.Generator().manual_seed(0)"
        )
