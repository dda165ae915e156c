"""Check a model folder of unknown origin before transformers reads it.

transformers builds as many layers as config.json asks for: 10⁹ layers would fill the memory.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import damaged, read_object, stays_inside

_COUNT = re.compile(r"layers?$|depths?$|experts$|blocks$|repeats$|heads$|(hidden|vocab)_size$")
"""Pattern of configuration entries that are numbers of modules, or sizes."""
SPARE = 1000
"""How far a number of modules may exceed the number of tensors; layers may share weights."""
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a model; empty if it has none.

    Args:
        folder: folder that `save_pretrained` wrote.

    Returns:
        Paths in the folder.

    Raises:
        RunError: the index is damaged, lists a file outside the folder, or leaves the one out that
            would be read.
    """
    single, index = folder / "model.safetensors", folder / _INDEX
    if not index.exists():
        return [single] if single.exists() else []
    listed = read_object(index).get("weight_map")
    names = sorted({*map(str, listed.values())}) if isinstance(listed, dict) else []
    if not names or not all(stays_inside(name) and name.endswith(".safetensors") for name in names):
        raise damaged(index, None, "expected safetensors files of this folder under `weight_map`")
    if single.exists() and single.name not in names:  # transformers would take it
        raise damaged(index, None, f"it names other files than {single.name}, which is here too")
    return [folder / name for name in names]


def check_own_code(model: str, config: Any) -> None:
    """Refuse a configuration that asks for kernels from the hub, which transformers would run.

    Args:
        model: name of the model, for the message.
        config: configuration of transformers.

    Raises:
        ArgumentError: the configuration asks for code from the hub.
    """
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part, kind in itertools.product(parts, ("attn_implementation", "experts_implementation")):
        if "/" in (kernel := str(getattr(part, f"_{kind}", None))):
            raise ArgumentError(
                f"{model} asks for code from elsewhere ({kind} {kernel}), which is never executed; "
                "take that line out of its config.json."
            )


def check_model_folder(folder: Path) -> None:
    """Refuse a configuration with far more layers than its weights have tensors.

    Args:
        folder: model folder; without config.json nothing is checked.

    Raises:
        RunError: config.json or the index of the weights is damaged, or there are too many layers.

    Cost:
        Reads config.json and the headers of the weights.
    """
    if not (path := folder / "config.json").is_file():
        return
    config = read_object(path)
    kinds = config.get("architectures")
    named = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
    if not (named or kinds is None):
        raise damaged(path, None, f"architectures: expected a list of names, got {kinds!r:.80}")
    if config.get("transformers_weights"):
        raise damaged(path, None, "transformers_weights: expected none; name files in the index")
    tensors = len(tensor_types(folder))
    for name, count in _counts(config):
        if count < 0:
            raise damaged(path, None, f"{name}: expected a number from 0 on, got {count}")
        if tensors and count > tensors + SPARE and not name.endswith("_size"):
            raise RunError(
                f"{path}: {name} is {count:,}, more than the {tensors:,} tensors beside it allow; "
                "take the configuration that the weights were saved with."
            )


def _counts(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield name and value of each number of modules in a configuration, nested ones too."""
    if isinstance(value, int) and _COUNT.search(name):
        yield name, value
    elif isinstance(value, list):
        for entry in value:
            yield from _counts(entry, name)
    elif isinstance(value, dict):
        for inner, entry in value.items():
            yield from _counts(entry, inner)


def tensor_types(folder: Path) -> dict[str, str]:
    """Read the dtype of each tensor, such as BF16, from the headers of a model's weight files.

    Args:
        folder: model folder.

    Returns:
        Name → dtype; empty if a header cannot be read.

    Raises:
        RunError: the index is damaged, or two files hold a tensor of one name.
    """
    from safetensors import SafetensorError, safe_open

    dtypes: dict[str, str] = {}
    try:
        for file in weight_files(folder):
            with safe_open(str(file), framework="pt") as opened:
                new = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
            if twice := {*dtypes} & {*new}:
                raise damaged(file, None, f"{min(twice)} is in another file too")
            dtypes |= new
    except (OSError, SafetensorError):
        return {}
    return dtypes
