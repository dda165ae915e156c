"""Storage formats of runtimes: bytes of a tensor, packing and unpacking."""

from hessblocks.tensor_formats.floats import FLOATS
from hessblocks.tensor_formats.format import FUSED, Format, as_rows, library
from hessblocks.tensor_formats.integers import GROUP, INTEGERS
from hessblocks.tensor_formats.llama import KINDS, LLAMA
from hessblocks.tensor_formats.mixes import MIXES, mix

__all__ = ["Format", "formats"]


def formats() -> dict[str, Format]:
    """Return the formats of llama.cpp, MLX, compressed-tensors and torchao, and others, by name.

    Examples:
        >>> import hessblocks as hb
        >>> [name for name in hb.formats() if name.endswith("4")]
        ['gguf:MXFP4', 'mlx:4', 'compressed-tensors:4', 'torchao:4', 'nf4', 'mxfp4', 'nvfp4']
    """
    return {found.name: found for found in (*LLAMA, *INTEGERS, *FLOATS)}
