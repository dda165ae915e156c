"""Whether loaded weights are those of the model: one sentence where they are not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging

from hessblocks.errors import RunError

HEADS = ("lm_head", "score")
"""Modules that may be new or left over, as when a classifier is made from a language model."""


@contextmanager
def clear_errors(path: Any) -> Iterator[None]:
    """Say which file is damaged, and keep transformers' own report of keys quiet meanwhile.

    Raises:
        RunError: the safetensors file is damaged or cut off.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except SafetensorError as error:
        raise RunError(
            f"{path}: the weights are damaged or cut off ({error}); copy or save the model again"
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def check_complete(path: Any, found: dict[str, Any]) -> None:
    """Refuse weights of another size or block; warn where a head is new.

    Args:
        path: where the weights came from.
        found: transformers' `output_loading_info`.

    Raises:
        RunError: names the first weights that do not fit.
    """
    for name, stored, expected in sorted(found["mismatched_keys"]):
        what = "vocabulary" if "token_embedding" in name else "sizes"
        raise RunError(
            f"{path}: the weights and the configuration differ in their {what}: {name} is {tuple(stored)} in the file, "
            f"{tuple(expected)} in the configuration; load with the configuration that was saved with the weights"
        )
    missing = sorted(found["missing_keys"])
    strange = [
        f"{kind} {name}"
        for kind, names in (("without", missing), ("with", sorted(found["unexpected_keys"])))
        for name in names
        if not _in_head(name)
    ]
    if strange:
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if strange[3:] else "")
        raise RunError(
            f"{path}: the weights are those of another block than the configuration's ({shown}); "
            "load with the configuration that was saved with the weights"
        )
    if missing:
        warnings.warn(f"{path}: {', '.join(missing)} is new and has to be trained", stacklevel=3)


def _in_head(name: str) -> bool:
    return name.split(".")[0] in HEADS
