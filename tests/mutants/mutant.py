"""Change the one place that a pattern matches; the named tests must turn red."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault."""

    name: str
    """What is wrong, in a few words; each mutant has a name of its own."""
    find: str
    """The right code, as a pattern (see `pattern`); it matches one place of all packages."""
    replace: str
    """The wrong code; metavariables stand for what they matched."""
    tests: tuple[str, ...]
    """`test_x`, `test_file.py` or `test_file.py::test_x`, wherever these stand."""
    within: str = ""
    """Function, `Class.method`, module or package that narrows the search."""


def fault(name: str, change: str, *tests: str, within: str = "") -> Mutant:
    """Make a mutant; `change` is `right code => wrong code`, or nothing after the arrow."""
    sides = re.split(r"\s=>(?:\s|$)", change)
    if len(sides) != 2:
        raise ValueError(f"{name}: expected one => in the change {change!r}")
    find, replace = (side.strip() for side in sides)
    return Mutant(name, find, replace, tests, within)
