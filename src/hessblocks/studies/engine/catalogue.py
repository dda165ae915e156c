"""All studies by name, in the order of the papers."""

from __future__ import annotations

import importlib

from hessblocks.errors import unknown_name
from hessblocks.studies.engine.study import Study

_MODULES: dict[str, str] = {
    "heatmap": "hessian_paper.heatmap",
    "fig3a": "hessian_paper.fig3a",
    "fig3b": "hessian_paper.fig3b",
    "histograms": "hessian_paper.histograms",
    "deep-softmax": "hessian_paper.deep_softmax",
    "deep-linear": "hessian_paper.deep_linear",
    "mlp": "hessian_paper.linear_mlp",
    "sigma-linear": "hessian_paper.sigma_linear",
    "one-matrix": "hessian_paper.one_matrix",
    "skipless": "blocks_paper.skipless",
    "restrict-updates": "blocks_paper.restrict_updates",
    "gains": "blocks_paper.gain_trajectories",
    "speed": "blocks_paper.speed",
    "depth": "blocks_paper.depth",
    "masked-lm": "blocks_paper.masked_lm",
    "downstream": "blocks_paper.finetuning",
    "longer": "blocks_paper.longer",
    "ablations": "blocks_paper.ablations",
    "simplification": "our_questions.simplification",
    "adaptivity": "our_questions.adaptivity",
}
"""Name → module of this package that holds it as `STUDY`."""


def names() -> tuple[str, ...]:
    """The names, in the order of the papers."""
    return tuple(_MODULES)


def find(name: str) -> Study:
    """The study of that name.

    Raises:
        ArgumentError: there is none; the message lists near names.
    """
    if name not in _MODULES:
        raise unknown_name("study", name, _MODULES)
    module = importlib.import_module(f"hessblocks.studies.{_MODULES[name]}")
    study: Study = module.STUDY
    assert study.name == name
    return study
