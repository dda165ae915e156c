"""Attention heads over a batch: queries and keys, moments, norms and rotary positions."""

from hessblocks.theory.heads.between_scores import HeadNorm, HeadRotation
from hessblocks.theory.heads.head_tokens import HeadTokens
from hessblocks.theory.heads.head_vectors import AttentionSetting, HeadVectors
