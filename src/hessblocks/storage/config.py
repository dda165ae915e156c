"""TODO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Each setting that differs, as "training.steps is 300, was 200"."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            found.append(f"{prefix}{name} is {now!r}, was {before!r}")
    return found
