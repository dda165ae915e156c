"""Check a model folder that somebody else made, before transformers reads it.

transformers makes as many layers as config.json says; 10⁹ of them are made until the memory is
full.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import damaged, read_object, stays_inside

_COUNT = re.compile(r"layers?$|depths?$|experts$|blocks$|repeats$")
"""Names of configurations that say how many modules are made."""
SPARE = 1000
"""Modules above the number of tensors that pass: layers that share weights, norms without any."""
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """List the files with the weights of a model; none where it has no safetensors.

    Args:
        folder: as `save_pretrained` writes it.

    Returns:
        Paths in the folder.

    Raises:
        RunError: the index is damaged, or names a file elsewhere.
    """
    single, index = folder / "model.safetensors", folder / _INDEX
    if single.exists() or not index.exists():
        return [single] if single.exists() else []
    listed = read_object(index).get("weight_map")
    names = sorted({*map(str, listed.values())}) if isinstance(listed, dict) else []
    if not names or not all(map(stays_inside, names)):
        raise damaged(index, None, "expected files of this folder under `weight_map`")
    return [folder / name for name in names]


def check_own_code(model: str, config: Any) -> None:
    """Refuse compiled code of the hub, which transformers would fetch and run.

    Args:
        model: what the configuration is of, for the message.
        config: config of transformers, as it was read.

    Raises:
        ArgumentError: it asks for such code.
    """
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part, kind in itertools.product(parts, ("attn_implementation", "experts_implementation")):
        if "/" in (found := str(getattr(part, f"_{kind}", None))):
            raise ArgumentError(
                f"{model} asks for code from elsewhere ({kind} {found}), which is never executed; "
                "take that line out of its config.json."
            )


def check_model_folder(folder: Path) -> None:
    """Refuse a configuration whose numbers of layers do not fit the weights beside it.

    Args:
        folder: with a config.json; nothing is looked at where there is none.

    Raises:
        RunError: config.json or the index of the weights is damaged, or the numbers do not fit.

    Cost:
        Reads config.json and the headers of the weights.
    """
    path = folder / "config.json"
    if not path.is_file():
        return
    config = read_object(path)
    if not (most := _tensors(weight_files(folder))):
        return
    for name, count in _counts(config):
        if count > most + SPARE:
            raise RunError(
                f"{path}: {name} is {count:,}, more than the {most:,} tensors beside it allow; "
                "take the configuration that the weights were saved with."
            )


def _counts(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield every number of modules in a configuration and those inside it."""
    if isinstance(value, int) and _COUNT.search(name):
        yield name, value
    elif isinstance(value, list):
        for one in value:
            yield from _counts(one, name)
    elif isinstance(value, dict):
        for inner, one in value.items():
            yield from _counts(one, inner)


def _tensors(files: list[Path]) -> int:
    """Count tensors by the weights' headers; 0 if these cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        count = 0
        for file in files:
            with safe_open(str(file), framework="pt") as opened:
                count += len(opened.keys())
    except (OSError, SafetensorError):
        return 0
    return count
