"""Split a known model's last layer into its attention and the token-wise network after it."""

from hessblocks.curvature.last_layer.forward_pass import HiddenNetwork, LastAttention
from hessblocks.curvature.last_layer.last_attention import last_attention
from hessblocks.curvature.last_layer.supported import (
    ROLES,
    check_linear,
    check_model,
    output_layer,
    uncovered,
    undisturbed,
)
