"""Extract the query and key norms (QK norm) of a model.

Letters: K query-key width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from hessblocks.curvature.last_layer.supported import uncovered
from hessblocks.errors import ArgumentError
from hessblocks.theory import HeadNorm


def head_norms(
    like: Float[Tensor, "rows K"], query: nn.Module | None = None, key: nn.Module | None = None
) -> dict[str, HeadNorm]:
    """Find the norms of queries and keys by their names, where there are any."""
    found = {"query_norm": query, "key_norm": key}
    return {
        name: _head_norm(name, module, like)
        for name, module in found.items()
        if not isinstance(module, nn.Identity | None)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class _NormModule:
    """Norm as a function of one vector and its trained parameters, as it was when taken."""

    module: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> _NormModule:
        return cls(module=copy.deepcopy(module))

    @property
    def trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def __call__(self, vector: Tensor, parameters: Tensor) -> Tensor:
        trained = self.trained
        pieces = parameters.split([p.numel() for p in trained.values()])
        own = {
            name: piece.view_as(p) for (name, p), piece in zip(trained.items(), pieces, strict=True)
        }
        normed: Tensor = functional_call(self.module, own, (vector,))
        return normed


def _head_norm(name: str, module: nn.Module, like: Tensor) -> HeadNorm:
    function = _NormModule.of(module)
    trained = [p.detach().flatten().to(like) for p in function.trained.values()]
    norm = HeadNorm(function=function, parameters=torch.cat([like.new_zeros(0), *trained]))
    try:
        norm.check(like.shape[-1])
    except ArgumentError as error:
        raise uncovered(
            f"expects {name} to act on each head's vector by itself ({error})"
        ) from error
    return norm
