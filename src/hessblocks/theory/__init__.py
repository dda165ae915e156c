"""Closed-form curvature of self-attention."""

from hessblocks.theory.attention import PARTS, AttentionHessian, Part
from hessblocks.theory.closed_form import attention_hessian
from hessblocks.theory.layer import AttentionLayer
from hessblocks.theory.moments import AttentionMoments
from hessblocks.theory.token_curvature import TokenCurvature

__all__ = [
    "PARTS",
    "AttentionHessian",
    "AttentionLayer",
    "AttentionMoments",
    "Part",
    "TokenCurvature",
    "attention_hessian",
]
