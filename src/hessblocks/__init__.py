"""Transformer blocks, simplified, and the curvature of their loss."""

from hessblocks._version import __version__

__all__ = ["__version__"]
