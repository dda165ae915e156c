"""What a line or row belongs to, written into it: a seal of two digests, `of-contents`.

`of` is the digest of the configuration that the numbers were computed with; a line with another one is
foreign. `contents` is the digest of the line itself, and in a file that only grows of the line before as
well; where it does not fit, the line was edited, or one before it was. Older files have no seals.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hessblocks.settings import with_defaults
from hessblocks.storage.files import read_object

FORMAT = 1
"""Raised whenever files of equal configurations are written differently."""
SEAL = "seal"
"""Name of the seal in a line, and of its column in a table."""
SHAPE = re.compile("([0-9a-f]{16}-[0-9a-f]{16})?")
"""Of a seal; empty in what an older version wrote."""
State = Literal["whole", "foreign", "edited", "missing", "unsealed"]
SAID: dict[str, str] = {"foreign": "is of another run", "edited": "was edited"}
"""States of a line that make it useless, and the words for them."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a file, or a folder that is sealed as a whole, is."""

    path: Path
    """Where it is, or should be."""
    state: State
    """whole, foreign, edited, missing or unsealed."""
    words: str = "is whole"
    """The end of a sentence that begins with its name."""

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against it: it is whole, or of a version that sealed nothing."""
        return self.state in ("whole", "unsealed")

    @property
    def sentence(self) -> str:
        """Name and words, without a full stop."""
        return f"{self.path}{':' if self.words.startswith('its') else ''} {self.words}"


def digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of JSON values, whatever the order of names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_of(config: Mapping[str, Any]) -> str:
    """What all files of a run belong to: preset, seed, data, sizes and every other setting."""
    return digest([FORMAT, config])


def identity_of_all(config: Mapping[str, Any]) -> str:
    """What the budget of a comparison belongs to: its settings but the presets and seeds, which may become more."""
    growing = ("presets", "seeds")
    return identity_of(
        {name: one for name, one in with_defaults(dict(config)).items() if name not in growing}
    )


def identity_in(folder: Path) -> str:
    """The identity of a run folder, from its config.json.

    Returns:
        Sixteen digits.

    Raises:
        RunError: config.json is absent or damaged.
    """
    return identity_of(read_object(folder / "config.json"))


def sealed(of: str, values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The line or row with its seal.

    Args:
        of: an identity.
        values: JSON values; a seal among them is replaced.
        before: seal of the line before, in a file that only grows.

    Returns:
        The values, the seal last.
    """
    bare = {name: value for name, value in values.items() if name != SEAL}
    return {**bare, SEAL: f"{of}-{digest([before, bare])}"}


def owner(values: Mapping[str, Any]) -> str:
    """The identity that a line or row says it is of; empty where it has no seal."""
    return str(values.get(SEAL) or "").partition("-")[0]


def state_of(values: Mapping[str, Any], owners: Collection[str] = (), before: str = "") -> State:
    """Whether a line or row is what was written, and of whom.

    Args:
        values: the line with its seal.
        owners: identities of which it should be; none means anybody's.
        before: seal of the line before, in a file that only grows.

    Returns:
        whole, foreign, edited or unsealed.
    """
    theirs = owner(values)
    if not theirs:
        return "unsealed"
    if owners and theirs not in owners:
        return "foreign"
    return "whole" if sealed(theirs, values, before)[SEAL] == values[SEAL] else "edited"
