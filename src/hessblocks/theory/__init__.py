"""Closed-form Hessian of self-attention: H = H_o + H_f, Gauss-Newton (GGN) part and the rest."""

from hessblocks.conventions import PARTS, Part
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.functional import functional_terms
from hessblocks.theory.head_tokens import HeadTokens
from hessblocks.theory.head_vectors import HeadNorm, HeadRotation
from hessblocks.theory.hessian import AttentionHessian, ScoreSplit
from hessblocks.theory.layer import AttentionLayer, AttentionMoments
from hessblocks.theory.limits import at_limit
from hessblocks.theory.outer import TokenCurvature
from hessblocks.theory.piecewise import Piece, PiecewiseHessian
from hessblocks.theory.rank_bounds import rank_bound

__all__ = [
    "PARTS",
    "AttentionHessian",
    "AttentionLayer",
    "AttentionMoments",
    "HeadNorm",
    "Part",
    "ScoreSplit",
    "TokenCurvature",
    "at_limit",
    "attention_hessian",
    "rank_bound",
]
