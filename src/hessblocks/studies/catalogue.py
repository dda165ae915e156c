"""All studies by name, in the order of the papers."""

from __future__ import annotations

import importlib

from hessblocks.errors import unknown_name
from hessblocks.studies.study import Study

_MODULES: dict[str, str] = {
    "heatmap": "heatmap",
    "fig3a": "fig3a",
    "fig3b": "fig3b",
    "histograms": "histograms",
    "deep-softmax": "deep_softmax",
    "deep-linear": "deep_linear",
    "mlp": "mlp",
    "sigma-linear": "sigma_linear",
    "one-matrix": "one_matrix",
    "skipless": "skipless",
    "restrict-updates": "restrict_updates",
    "gains": "gains",
    "speed": "speed",
    "depth": "depth",
    "masked-lm": "masked_lm",
    "downstream": "downstream",
    "longer": "longer",
    "ablations": "ablations",
    "simplification": "simplification",
    "adaptivity": "adaptivity",
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
