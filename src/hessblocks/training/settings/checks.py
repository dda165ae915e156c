"""Checks that settings share, and how two configurations differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hessblocks.errors import ArgumentError, unknown_name


def resolve_device(device: str) -> str:
    """Auto to cuda where there is one, else cpu.

    Raises:
        ArgumentError: no such device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"--device: expected auto, cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device: this machine has no usable cuda device; use --device cpu.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def check_count(name: str, value: int, prefix: str = "") -> None:
    """Refuse what is below 1, naming the option.

    Raises:
        ArgumentError: names the option and what came.
    """
    if value < 1:
        raise ArgumentError(
            f"{option(name, prefix)}: expected a whole number of at least 1, got {value}."
        )


def option(name: str, prefix: str = "") -> str:
    """The command-line option of a field."""
    return f"--{prefix}{name.replace('_', '-')}"


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is not among the known ones, naming the option.

    Raises:
        ArgumentError: lists the known ones.
    """
    if value not in known:
        raise unknown_name(option(name), value, known)
