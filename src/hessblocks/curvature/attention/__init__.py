"""Softmax attention with two derivatives and memory linear in the context."""

from hessblocks.curvature.attention.call import (
    attend_twice,
    misfits,
    registered_attention,
    second_order_attention,
)
