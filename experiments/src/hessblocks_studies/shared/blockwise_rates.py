"""Compute a learning rate for each parameter group, from its curvature or published multipliers.

Letters: η_g rate of group g, n_g its entries, A_gg its own block of the curvature that the
optimiser's step meets.
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor, nn

from hessblocks import curvature
from hessblocks.errors import ArgumentError, check_name

RULES = ("measured", "published")
PUBLISHED = {
    "norm": 1.0,
    "value": 4.0,
    "projection": 4.0,
    "mlp_in": 6.0,
    "mlp_out": 6.0,
    "query": 8.0,
    "key": 8.0,
    "embedding": 10.0,
}
"""Multipliers of the base by role; roles that are not named keep the base."""


def blockwise_learning_rates(
    model: nn.Module,
    groups: Mapping[str, curvature.ParameterGroup] | None = None,
    *,
    base: float,
    rule: str = "measured",
    norms: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Make parameter groups for an optimiser of torch, each with its own learning rate.

    `measured`: η_g = c / norms[g], with the one c for which the geometric mean of the rates over
    all trainable entries, ∏ η_g^(n_g / n), is `base`. A step η_g on a quadratic is stable where η_g
    λ_max(A_gg) is below a number of the optimiser (2 for gradient descent), and λ_max(A_gg) ≤
    ‖A_gg‖_F: all groups get the same share of the rate that their own norm guarantees. A is H for
    gradient descent, with momentum or without (`group_norms`); for Adam it is D^(-1/2) H D^(-1/2),
    whose norms are those of `PreconditionedHessian`. Norms may also be largest eigenvalues
    (`preconditioned_sharpness`), of which the bound is exact.

    `published`: η_g = base · 1 (norm), 4 (value, projection), 6 (MLP), 8 (query, key),
    10 (embedding), tuned for AdamW on language models of 0.12 to 2 billion parameters; `base` is
    the rate tuned for one rate for all. Gains, routers, an untied head and other roles are not in
    that table and keep `base`, as the authors' scripts do with a head.

    What this does not claim: that training is faster than with one tuned rate; anything of blocks
    between two groups (with G groups and A positive semi-definite these can lower what is stable by
    a factor of G at most); that curvature stays as it was measured, also over a step as long as a
    block of tiny curvature allows (look at the rates first); or that noise of gradients, which
    `norms` do not see, asks for the same rates.

    Args:
        model: whose trainable parameters are moved.
        groups: by name, which together hold each trainable entry once; those of `parameter_groups`
            by default.
        base: learning rate, above 0.
        rule: `measured` or `published`.
        norms: for `measured` alone: the curvature of each group above 0, as a number, an estimate
            or what `group_norms` gives (its part `full`).

    Returns:
        Dictionaries with `params`, `lr` and `name` in the order of `model.named_parameters()`, for
        `torch.optim.AdamW(...)` or `Trainer(optimizer_cls_and_kwargs=(AdamW, {"params": ...}))`; a
        tied tensor once. Weight decay is left to the caller, who may set it by name. A tensor with
        entries of several groups (a fused weight of query, key and value) takes the smallest of
        their rates; its group is named after all of them, joined by " + ".

    Raises:
        ArgumentError: an unknown rule, a base or norm that is no number above 0, norms that are
            missing or not wanted, groups of another model, or that do not hold each trainable entry
            once.

    Source: rule `published` and its authors' scripts: Wang et al. (2025), The sharpness disparity
        principle, arXiv 2502.19002; stability with a preconditioner: Cohen et al. (2022),
        arXiv 2207.14484.
    """
    check_name("rule", rule, RULES)
    _check_number("base", base)
    groups = curvature.parameter_groups(model) if groups is None else groups
    whole = curvature.plain_model(model, sharded=True)
    named = {name: p for name, p in whole.named_parameters() if p.requires_grad}
    together: dict[tuple[str, ...], list[str]] = {}
    for name, own in _owners(groups, named).items():
        together.setdefault(own, []).append(name)
    if rule == "published":
        if norms is not None:
            raise ArgumentError("norms: rule='published' takes none")
        relative = {name: PUBLISHED.get(group.role, 1.0) for name, group in groups.items()}
    else:
        relative = {name: 1 / _number((norms or {}).get(name), name) for name in groups}
    rates = {own: min(relative[one] for one in own) for own in together}
    sizes = {own: sum(named[name].numel() for name in names) for own, names in together.items()}
    middle = sum(n * math.log(rates[own]) for own, n in sizes.items()) / sum(sizes.values())
    middle = 0.0 if rule == "published" else middle
    return [
        {
            "params": [named[name] for name in names],
            "lr": base * math.exp(math.log(rates[own]) - middle),
            "name": " + ".join(own),
        }
        for own, names in together.items()
    ]


def _owners(
    groups: Mapping[str, curvature.ParameterGroup], named: Mapping[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    """Name the groups of each parameter; together they partition its entries."""
    sizes = {name: parameter.numel() for name, parameter in named.items()}
    for name, group in groups.items():
        if (wrong := curvature.misfit(group, sizes)) is not None:
            raise ArgumentError(
                f"groups: {name!r} does not fit the model, in {wrong!r}; take those of "
                "parameter_groups(model)"
            )
    for name, owned in curvature.check_disjoint(groups.values(), named).items():
        if not owned.all():
            raise ArgumentError(
                f"groups: {int((~owned).sum()):,} entries of {name!r} belong to no group"
            )
    every = [(title, set(group.parameters)) for title, group in groups.items()]
    return {name: tuple(title for title, own in every if name in own) for name in named}


def _number(given: Any, group: str) -> float:
    """Read the norm of a group: a number, an estimate, or the parts that `group_norms` gives."""
    found: Any = given.get("full") if isinstance(given, Mapping) else given
    found = getattr(found, "value", found)
    advice = "; measure its part 'full', after some steps where it is 0 at first"
    _check_number(f"norms[{group!r}]", found, advice)
    return float(found)


def _check_number(what: str, value: Any, advice: str = "") -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{what}: expected a finite number above 0, got {value!r}{advice}")
