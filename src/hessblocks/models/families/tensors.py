"""Names of the weights in each architecture, and the order inside fused weights.

A weight is (outputs, inputs); GPT-2 stores (inputs, outputs). Letters: H heads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

State = dict[str, Shaped[Tensor, "..."]]
ENDINGS = ("weight", "bias")
READ = ("attention.query", "attention.key", "attention.value")


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Names of an architecture's weights, with the corresponding names in our models."""

    layers: str
    """Path of the list of layers."""
    layer: Mapping[str, str | tuple[str, ...]]
    """Our modules for each module of a layer; several for a fused weight."""
    outside: Mapping[str, str]
    """Our module for each module outside the layers."""
    transposed: bool = False
    """Whether weights of layers are stored (inputs, outputs)."""
    by_head: bool = False
    """Whether a fused weight is ordered [head][query, key, value]."""

    def ours(self, theirs: State, heads: int) -> State:
        """Rename weights to our names; leave out weights without one."""
        found: State = {}
        for place, names, flipped in self._places(theirs):
            weight = theirs[place].T if flipped else theirs[place]
            found |= zip(names, self._cut(weight, len(names), heads), strict=True)
        return found

    def theirs(self, places: State, ours: State, heads: int) -> State:
        """Rename our weights to the architecture's names.

        Args:
            places: weights of a model of this architecture; only names and shapes are used.
            ours: weights by our names.
            heads: number of query heads.

        Returns:
            Weights by the names in `places`.
        """
        found: State = {}
        for place, names, flipped in self._places(places):
            weight = self._join([ours[name] for name in names], heads)
            found[place] = weight.T.contiguous() if flipped else weight
        return found

    def _places(self, state: State) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        """Yield each name, our names for it, and whether the weight is stored transposed."""
        for place, weight in state.items():
            module, _, end = place.rpartition(".")
            number, _, inside = module.removeprefix(f"{self.layers}.").partition(".")
            if module in self.outside:
                yield place, (f"{self.outside[module]}.{end}",), False
            elif module.startswith(self.layers) and inside in self.layer:
                own = self.layer[inside]
                stem = f"model.layers.{number}"
                names = tuple(
                    f"{stem}.{n}.{end}" for n in ((own,) if isinstance(own, str) else own)
                )
                yield place, names, self.transposed and weight.ndim == 2

    def _cut(self, weight: Tensor, count: int, heads: int) -> list[Tensor]:
        if not self.by_head or count == 1:
            return list(weight.chunk(count))
        by_head = weight.unflatten(0, (heads, count, -1))
        return [by_head[:, role].flatten(0, 1) for role in range(count)]

    def _join(self, weights: list[Tensor], heads: int) -> Tensor:
        if not self.by_head or len(weights) == 1:
            return torch.cat(weights)
        apart = [weight.unflatten(0, (heads, -1)) for weight in weights]
        return torch.stack(apart, dim=1).flatten(0, 2)


LLAMA = Tensors(
    layers="model.layers",
    layer={
        **{f"self_attn.{name[0]}_proj": f"attention.{name}" for name in ("query", "key", "value")},
        "self_attn.o_proj": "attention.projection",
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.input",
        "mlp.down_proj": "mlp.output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
    },
    outside={
        "model.embed_tokens": "model.token_embedding",
        "model.norm": "model.final_norm",
        "lm_head": "lm_head",
    },
)
GPT2 = Tensors(
    layers="transformer.h",
    layer={
        "attn.c_attn": READ,
        "attn.c_proj": "attention.projection",
        "mlp.c_fc": "mlp.input",
        "mlp.c_proj": "mlp.output",
        "ln_1": "attention_norm",
        "ln_2": "mlp_norm",
    },
    outside={
        "transformer.wte": "model.token_embedding",
        "transformer.wpe": "model.position_embedding",
        "transformer.ln_f": "model.final_norm",
        "lm_head": "lm_head",
    },
    transposed=True,
)
GPT_NEOX = Tensors(
    layers="gpt_neox.layers",
    layer={
        "attention.query_key_value": READ,
        "attention.dense": "attention.projection",
        "mlp.dense_h_to_4h": "mlp.input",
        "mlp.dense_4h_to_h": "mlp.output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
    },
    outside={
        "gpt_neox.embed_in": "model.token_embedding",
        "gpt_neox.final_layer_norm": "model.final_norm",
        **dict.fromkeys(("lm_head", "embed_out"), "lm_head"),  # the later and the earlier name
    },
    by_head=True,
)
