"""Find studies by name, in the order of the papers."""

import importlib
from typing import Any

from hessblocks.errors import ArgumentError, check_name
from hessblocks_studies import bill, blocks_paper, hessian_paper, our_questions, pretrained
from hessblocks_studies.engine import Study

_PLACES = {
    name: f"{room.__name__}.{module}"
    for room in (hessian_paper, blocks_paper, our_questions, pretrained, bill)
    for name, module in room.STUDIES.items()
}
"""Name → module whose constant `STUDY` is the study; it is imported only when `find` needs it."""
FINISHED = {
    **dict.fromkeys(
        ("baseline", "trial", "simplification", "optimisers", "edge-of-stability", "between"),
        "226388b5",
    ),
    "ladder-first": "eaf1929c",
    "simplify-pretrained": "52fce62e",
}
"""Study that has its verdict, or was replaced → the last commit with its code; docs/results keeps
its page, store and plan."""
REPLACED = {
    "ladder-first": "its starts and rates favoured SAS; `ladder` asks its question anew, fairly",
    "simplify-pretrained": "the plan that it judges is a search, which one pass of refits replaced",
}
"""Finished study that another replaced → why, as a sentence."""


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
        ArgumentError: unknown name; the message lists similar names. Or the study is finished; the
            message names the commit that has its code.
    """
    if name in FINISHED:
        raise ArgumentError(
            f"study: {name!r} is finished, and docs/results/{name}.md has its results; to measure "
            f"it again, run `git checkout {FINISHED[name]}` in a clone."
        )
    check_name("study", name, _PLACES)
    study: Study[Any] = importlib.import_module(_PLACES[name]).STUDY
    assert study.name == name
    return study
