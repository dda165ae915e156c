"""Split weights into heads, and read the mask of the last attention.

Letters: B sequences, L tokens, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from hessblocks.curvature.last_layer.supported import uncovered
from hessblocks.theory import AttentionLayer


def cut_into_heads(
    inputs: Float[Tensor, "B L D"],
    weights: Mapping[str, Float[Tensor, "rows columns"]],
    *,
    heads: int,
    groups: int,
    **fields: Any,
) -> AttentionLayer:
    """Split the weights into heads; append a column of ones to the inputs for biases."""
    width = inputs.shape[-1]
    biased = {len(w) == width + 1 for name, w in weights.items() if name != "projection"}
    if "key" not in weights and True in biased:
        raise uncovered("covers one query-key matrix without biases only")
    if len(biased) == 2:
        raise uncovered("expects biases on all of query, key and value, or on none")
    x = torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=-1) if True in biased else inputs

    def per_head(name: str, count: int) -> Tensor:
        weight = weights[name].to(inputs).reshape(x.shape[-1], count, -1)
        return weight.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    value = per_head("value", groups)
    projection = weights["projection"][: heads * value.shape[2]].to(inputs).clone()
    return AttentionLayer(
        x=x,
        query=per_head("query", heads),
        key=per_head("key", groups) if "key" in weights else None,
        value=value,
        projection=projection.unflatten(0, (heads, -1)),
        **fields,
    )


def permitted(
    inputs: Float[Tensor, "B L D"],
    attention_mask: Shaped[Tensor, "B L"] | None,
    *,
    causal: bool,
    window: int | None = None,
    places: Int[Tensor, "*B L"] | None = None,
) -> Bool[Tensor, "#B L L"]:
    """Build the mask, True where a query may attend; a padded query attends to itself.

    Args:
        inputs: inputs of the attention.
        attention_mask: 0 at padding.
        causal: whether a token attends only to itself and earlier tokens.
        window: number of tokens that a token attends to, itself included (to each side if not
            causal).
        places: positions. A position that is not the previous one plus 1 starts a new sequence in
            the same row; without a mask, causal models of transformers separate such sequences.

    Returns:
        One mask for all rows, or one per row.
    """
    tokens = inputs.shape[1]
    diagonal = torch.eye(tokens, dtype=torch.bool, device=inputs.device)
    allowed = torch.ones_like(diagonal)[None]
    if causal:
        allowed = allowed.tril()
    if window:
        allowed = allowed.triu(1 - window)
        allowed = allowed if causal else allowed & allowed.mT
    if attention_mask is not None:
        return (allowed & attention_mask.bool()[:, None, :]) | diagonal
    if causal and places is not None:
        places = places.reshape(-1, tokens)
        sequence = nn.functional.pad(places.diff(dim=-1) != 1, (1, 0)).cumsum(-1)
        allowed = allowed & (sequence[:, :, None] == sequence[:, None, :])
    return allowed
