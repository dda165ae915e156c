"""Neighbouring matrices of a trained attention, multiplied where nothing stands between them.

With one head, W_V W_P acts as one matrix and so does W_Q W_Kᵀ / sqrt(K). With several, each head's
product would be width × width: exact too, but larger than what it replaces.

Letters: K head width; weights are stored (outputs, inputs) and applied as x @ weight.T.
"""

from __future__ import annotations

from torch import Tensor

from hessblocks.blocks import BlockConfig, Dense, Identity, NoNorm, RotaryPosition
from hessblocks.errors import ArgumentError

State = dict[str, Tensor]
PLAIN = Dense()


def merged_block(block: BlockConfig) -> BlockConfig:
    """The configuration after merging.

    Raises:
        ArgumentError: nothing can be merged, and what stands in the way.
    """
    if block.heads > 1:
        raise ArgumentError(
            f"merge: {block.heads} heads: each head's product of two matrices would be larger than the two; "
            "only blocks with one head have neighbouring matrices to merge"
        )
    attention = block.attention
    if _values_touch(block):
        attention = attention.replace(first_value=None, projection=Identity())
    if _scores_touch(block):
        attention = attention.replace(query_key="one-matrix")
    if attention == block.attention:
        raise ArgumentError(
            "merge: no two matrices are neighbours; identities, biases, query-key norms and rotary positions stand between"
        )
    return block.replace(attention=attention)


def merge_layer(state: State, prefix: str, wide: BlockConfig, merged: BlockConfig) -> None:
    """Multiply one layer's matrices in a state dictionary.

    Args:
        state: changed in place.
        prefix: of the layer's names, with a dot at its end.
        wide: configuration before merging.
        merged: configuration after merging.
    """
    attention = prefix + "attention."
    if merged.attention.projection != wide.attention.projection:
        projection = state.pop(attention + "projection.weight")
        state[attention + "value.weight"] = projection @ state[attention + "value.weight"]
    if merged.attention.query_key != wide.attention.query_key:
        key, query = state.pop(attention + "key.weight"), state[attention + "query.weight"]
        state[attention + "query.weight"] = wide.head_width**-0.5 * key.T @ query


def _values_touch(block: BlockConfig) -> bool:
    attention = block.attention
    values = (attention.value, attention.first_value or attention.value, attention.projection)
    return all(weight == PLAIN for weight in values)


def _scores_touch(block: BlockConfig) -> bool:
    attention = block.attention
    norms = (attention.query_key_norm, attention.resolved_query_norm)
    return (
        attention.query_key == "two-matrix"
        and attention.query == attention.key == PLAIN
        and all(isinstance(norm, NoNorm) for norm in norms)
        and not isinstance(block.position, RotaryPosition)
    )
