"""The curvature of one model on the comparison's fixed held-out batch, as rows of results.csv."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from hessblocks.curvature import AttentionBackendWarning, Problem, group_norms, parameter_groups
from hessblocks.data import Corpus
from hessblocks.settings import CurvatureSettings, RunSettings
from hessblocks.storage import ResultRow


def curvature_rows(
    model: nn.Module,
    settings: RunSettings,
    curvature: CurvatureSettings,
    corpus: Corpus,
    stage: str,
) -> list[ResultRow]:
    """Frobenius norms of H_o, H_f and H of every parameter group.

    Args:
        model: at the stage's weights.
        settings: of the run.
        curvature: batch and probes.
        corpus: where the held-out batch comes from.
        stage: initial or final.

    Returns:
        One row a group and part.

    Cost:
        About a gradient of the batch for each probe and group.
    """
    model.to(torch.device(settings.device))
    batch = corpus.curvature_batch(curvature.sequences, curvature.tokens, curvature.seed)
    groups = parameter_groups(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionBackendWarning)
        problem = Problem(model, batch, loss="causal-lm")
        norms = group_norms(problem, groups, probes=curvature.probes, seed=curvature.seed)
    return [
        ResultRow(
            preset=settings.preset,
            seed=settings.seed,
            stage=stage,
            quantity="frobenius_norm",
            layer=groups[name].layer,
            group=name,
            role=groups[name].role,
            part=part,
            value=estimate.value,
            standard_error=estimate.standard_error,
            method=estimate.method,
        )
        for name, parts in norms.items()
        for part, estimate in parts.items()
    ]
