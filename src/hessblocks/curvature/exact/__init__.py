"""Exact Hessian of a real model's last attention, by the closed form of the theory."""

from hessblocks.curvature.exact.block_hessian import UNEMBEDDING, LastBlockHessian
from hessblocks.curvature.exact.last_block import exact_attention_curvature, exact_last_block
