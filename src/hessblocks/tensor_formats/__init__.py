"""Storage formats of runtimes: bytes of a tensor, packing and unpacking."""

from hessblocks.errors import choice_of
from hessblocks.tensor_formats.floats import FLOATS
from hessblocks.tensor_formats.format import Format, as_rows, library
from hessblocks.tensor_formats.integers import GROUP, INTEGERS
from hessblocks.tensor_formats.llama import KINDS, LLAMA, MIXES, mix

__all__ = ["Format", "formats"]


def formats() -> dict[str, Format]:
    """Return the formats of llama.cpp, MLX, compressed-tensors and torchao, and others, by name.

    Examples:
        >>> import hessblocks as hb
        >>> [name for name in hb.formats() if name.endswith("4")]
        ['gguf:MXFP4', 'mlx:4', 'compressed-tensors:4', 'torchao:4', 'nf4', 'mxfp4', 'nvfp4']
    """
    return {entry.name: entry for entry in (*LLAMA, *INTEGERS, *FLOATS)}


def format_of(name: str | Format) -> Format:
    """Find a format by its name, in lower or upper case; a format is returned as it is."""
    return name if isinstance(name, Format) else formats()[choice_of("format", name, formats())]
