"""Attention heads over a batch: queries and keys, moments, norms and rotary positions."""

from hessblocks.theory.heads.head_norm import HeadNorm
from hessblocks.theory.heads.head_tokens import HeadTokens
from hessblocks.theory.heads.rotation import Rotation
