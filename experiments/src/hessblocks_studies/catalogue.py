"""Find studies by name, in the order of the papers."""

import importlib
from typing import Any

from hessblocks.errors import check_name
from hessblocks_studies import (
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
    for room in (hessian_paper, blocks_paper, fair_trial, our_questions, pretrained, bill)
    for name, module in room.STUDIES.items()
}
"""Name → module that holds it as `STUDY`; the module is imported when the study is asked for."""


def names() -> tuple[str, ...]:
    """The names, in the order of the papers."""
    return tuple(_PLACES)


def find(name: str) -> Study[Any]:
    """The study of that name.

    Args:
        name: as `names` lists them.

    Returns:
        The study, as its module declares it.

    Raises:
        ArgumentError: there is none; the message lists near names.
    """
    check_name("study", name, _PLACES)
    study: Study[Any] = importlib.import_module(_PLACES[name]).STUDY
    assert study.name == name
    return study
