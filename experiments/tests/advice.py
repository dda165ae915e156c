"""Print where keys of stored points have moved, and forbid nothing: a part of
`make lint`."""

from __future__ import annotations

import hashlib
import json

from hessblocks.storage import canonical
from hessblocks_studies.catalogue import find, names
from hessblocks_studies.engine.study import SCALES

KEYS = (16653, "59c6e85b4f0e62b68fa5841a26de2a94c0c109833643125c1f6e08871b9432b3")
"""How many keys there are at all scales, and their digest, floats to 12 digits."""


def moved_keys() -> list[str]:
    """Say that a store on disk may be measured again, where a key is another."""
    keys = [p.key for name in names() for scale in SCALES for p in find(name).points(scale)]
    rounded = [canonical(json.loads(k, parse_float=lambda t: f"{float(t):.12g}")) for k in keys]
    found = (len(keys), hashlib.sha256("\n".join(rounded).encode()).hexdigest())
    return [] if found == KEYS else [f"keys of points are others: {found}, were {KEYS}"]


if __name__ == "__main__":
    print(*(f"advice: {one}" for one in moved_keys()), sep="\n")
