"""Print where keys of stored points or counts in prose have moved, and forbid nothing: a part of
`make lint`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hessblocks.storage import canonical
from hessblocks_studies.catalogue import find, names
from hessblocks_studies.engine.study import SCALES

README = Path(__file__).parents[2] / "README.md"
KEYS = (16443, "97ecb8bea216802aa4d39349da766bb1fd97fd30da46a2b1fe3b384c42632fe5")
"""How many keys there are at all scales, and their digest, floats to 12 digits."""


def moved_keys() -> list[str]:
    """Say that a store on disk may be measured again, where a key is another."""
    keys = [p.key for name in names() for scale in SCALES for p in find(name).points(scale)]
    rounded = [canonical(json.loads(k, parse_float=lambda t: f"{float(t):.12g}")) for k in keys]
    found = (len(keys), hashlib.sha256("\n".join(rounded).encode()).hexdigest())
    return [] if found == KEYS else [f"keys of points are others: {found}, were {KEYS}"]


def wrong_counts(readme: str) -> list[str]:
    """The count of studies, where the README has another."""
    said = f"`--list` shows all {len(names())}."
    return [] if said in readme else [f"README.md: expected {said!r}"]


if __name__ == "__main__":
    found = [*moved_keys(), *wrong_counts(README.read_text(encoding="utf-8"))]
    print(*(f"advice: {one}" for one in found), sep="\n")
