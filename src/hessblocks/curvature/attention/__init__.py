"""Softmax attention with two derivatives and memory linear in the context."""

from hessblocks.curvature.attention.call import attend_twice, misfits, second_order_attention
from hessblocks.curvature.attention.hugging_face import in_place_of, registered_attention
