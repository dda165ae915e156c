"""Find studies by name, in the order of the papers."""

import importlib
from typing import Any

from hessblocks.errors import check_name
from hessblocks_studies import (
    between,
    bill,
    blocks_paper,
    fair_trial,
    hessian_paper,
    our_questions,
    pretrained,
)
from hessblocks_studies.engine import Study

_PLACES = {
    name: f"{room.__name__}.{module}"
    for room in (hessian_paper, blocks_paper, fair_trial, our_questions, between, pretrained, bill)
    for name, module in room.STUDIES.items()
}
"""Name → module whose constant `STUDY` is the study; it is imported only when `find` needs it."""


def names() -> tuple[str, ...]:
    """List the names of the studies, in the order of the papers."""
    return tuple(_PLACES)


def find(name: str) -> Study[Any]:
    """Import and return the study of a name.

    Args:
        name: one of `names`.

    Returns:
        The study of the module.

    Raises:
        ArgumentError: unknown name; the message lists similar names.
    """
    check_name("study", name, _PLACES)
    study: Study[Any] = importlib.import_module(_PLACES[name]).STUDY
    assert study.name == name
    return study
