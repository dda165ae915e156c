"""Open a GGUF file, llama.cpp's format; check its header before transformers reads the file."""

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from transformers import PreTrainedModel
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from hessblocks.errors import ArgumentError, RunError
from hessblocks.escape import printable

ENDING = ".gguf"
NO_MODELS = ("general", "tokenizer")
"""Prefixes of header fields that are not an architecture's name."""


def is_gguf(source: str) -> bool:
    """Tell whether a source has the file name of a GGUF file."""
    return source.lower().endswith(ENDING)


def open_gguf(path: str | Path) -> Any:
    """Read the header of a GGUF file, four times as fast as `gguf.GGUFReader`, which it is else."""
    import gguf

    class Reader(gguf.GGUFReader):
        data: Any

        def _get(self, *place: Any, **more: Any) -> Any:
            self.data = self.data.view(np.ndarray)  # slices of a memmap are slow
            return super()._get(*place, **more)

    return Reader(path)


def check_gguf(path: Path) -> Any:
    """Check that a GGUF file is undamaged, and that transformers supports its architecture.

    Args:
        path: path of the file.

    Returns:
        Its reader, for `reading`.

    Raises:
        ArgumentError: no such file, the package `gguf` is missing, or an unknown architecture.
        RunError: the file is damaged, or has tensors for fewer layers than its header says.

    Cost: reads the header; the weights are memory-mapped, not read.
    """
    if not path.is_file():
        raise ArgumentError(f"MODEL: {path} is no file; give a GGUF file that exists.")
    if not importlib.util.find_spec("gguf"):
        raise ArgumentError("MODEL: a GGUF file needs the package gguf: pip install gguf")
    try:
        reader = open_gguf(path)
        kind = str(reader.fields["general.architecture"].contents())
        counted = reader.fields.get(f"{kind}.block_count")
        layers = int(counted.contents()) if counted else 0
    except Exception as error:  # a file from elsewhere may cause any kind of error
        raise RunError(
            f"MODEL: {path} is damaged or no GGUF file; copy or download it again."
        ) from error
    known = sorted({*GGUF_CONFIG_MAPPING} - {*NO_MODELS})
    if kind not in known:
        raise ArgumentError(
            f"MODEL: {path} holds a model of the architecture {printable(kind)!r}, which "
            f"transformers does not read from GGUF; it reads {', '.join(known)}."
        )
    if layers > len(reader.tensors):
        raise RunError(
            f"MODEL: {path} names {layers:,} layers, more than its {len(reader.tensors):,} tensors "
            "allow; copy or download it again."
        )
    return reader


@contextmanager
def reading(reader: Any) -> Iterator[None]:
    """Let transformers use a reader again.

    It would read the header at each step, and make the table of names for each module.
    """
    if reader is None:
        yield
        return
    import gguf

    names = functools.cache(gguf.get_tensor_name_map)
    with (
        patch.object(gguf, "GGUFReader", lambda *_: reader),
        patch.object(gguf, "get_tensor_name_map", names),
    ):
        yield


def drop_quantization_config(model: PreTrainedModel) -> None:
    """Mark a model that was read from a GGUF file as not quantised.

    Its weights are float32 already, but transformers would refuse to save a "quantized" model.
    """
    if quantizer := getattr(model, "hf_quantizer", None):
        quantizer.remove_quantization_config(model)
