"""Verify the closed form of whole last layers against dense autodiff, per architecture."""

from hessblocks.curvature.verification.last_layers import verify_last_blocks
from hessblocks.curvature.verification.tiny_models import FAMILY_MODELS, without_casts
