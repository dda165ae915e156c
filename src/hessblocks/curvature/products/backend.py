"""The state in which a model is differentiated twice: evaluation mode, attention in plain form.

Fused attention kernels have no second derivative. Inside `differentiable` they are replaced by the
mathematical form, and everything is put back afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature.closed import ClosedForms, closed_modules


class AttentionBackendWarning(UserWarning):
    """Fused attention was replaced by its plain form while curvature was computed."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off and batch norm fixed; each module's own mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and attention that has second derivatives; says so once where it matters."""
    fused_allowed = torch.backends.cuda.flash_sdp_enabled()
    with (
        evaluation_mode(model),
        sdpa_kernel(SDPBackend.MATH),
        closed_modules(model),
        ClosedForms() as calls,
    ):
        yield
    if calls.attention_seen and fused_allowed:
        warnings.warn(
            "curvature: fused attention has no second derivative; its plain form (SDPBackend.MATH) is "
            "used while curvature is computed",
            AttentionBackendWarning,
            stacklevel=1,
        )
