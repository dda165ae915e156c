"""Freeze the scale of a norm to its mean, and fold the norm into the matrices that read it.

RMSNorm is x g / rms(x). It becomes linear if 1 / rms(x) is replaced by its mean over tokens. So
does LayerNorm, whose subtraction of the mean is a matrix. Letters: D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hessblocks.blocks import BlockConfig, Dense, NoNorm
from hessblocks.simplify.place import Candidate, Place


def attention_norm(at: Place) -> Candidate | None:
    """Freeze the norm before attention."""
    if at.layer.attention is None or at.layer.post:
        return None
    shared = at.block.layout == "parallel" and at.block.mlp_norm is None
    readers = ["attention.query", "attention.key", "attention.value"]
    if at.block.attention.gate is not None:
        readers.append("attention.gate")
    fields: dict[str, Any] = {"norm": NoNorm()}
    if at.block.sub_blocks == "both" and not shared:
        fields["mlp_norm"] = at.block.mlp_norm or at.block.norm
    x = at.text.states[at.index]
    readers += _mlp_readers(at) if shared else []
    return _frozen(at, "attention norm", at.layer.attention_norm, x, readers, fields)


def mlp_norm(at: Place) -> Candidate | None:
    """Freeze the norm before the MLP."""
    if at.layer.mlp_norm is None or at.layer.post:
        return None
    seen: list[Tensor] = []
    with at.layer.mlp_norm.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        at.output_pairs()
    fields = {"mlp_norm": NoNorm()}
    return _frozen(at, "mlp norm", at.layer.mlp_norm, seen[0], _mlp_readers(at), fields)


def _mlp_readers(at: Place) -> list[str]:
    return ["mlp.input", *(["mlp.gate"] if at.block.mlp.gated else [])]


@torch.no_grad()
def _frozen(
    at: Place, kind: str, norm: Any, x: Tensor, readers: list[str], fields: dict[str, Any]
) -> Candidate | None:
    if not isinstance(norm, nn.RMSNorm | nn.LayerNorm) or not at.dense(*readers):
        return None
    wide, eps = x.double(), float(norm.eps or 0)
    centred, shift = isinstance(norm, nn.LayerNorm), getattr(norm, "bias", None)
    spread = wide.var(-1, unbiased=False) if centred else wide.square().mean(-1)
    scale = (spread + eps).rsqrt().mean()
    gain = scale * (torch.ones_like(wide[0, 0]) if norm.weight is None else norm.weight.double())
    block, state = at.block.replace(**fields), at.state
    for name in readers:
        weight = state[f"{name}.weight"].double()
        folded = weight * gain
        if centred:
            folded = folded - folded.mean(-1, keepdim=True)
            if shift is not None:
                own = state.get(f"{name}.bias", weight.new_zeros(len(weight)))
                bias = own.double() + weight @ shift.double()
                state[f"{name}.bias"] = bias.to(state[f"{name}.weight"])
                block = _with_bias(block, name)
        state[f"{name}.weight"] = folded.to(state[f"{name}.weight"])
    return at.candidate(kind, block, state)


def _with_bias(block: BlockConfig, name: str) -> BlockConfig:
    part, _, slot = name.partition(".")
    fields = {"input" if name == "mlp.gate" else slot: Dense(bias=True)}
    return block.replace(**{part: getattr(block, part).replace(**fields)})
