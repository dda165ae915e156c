"""Compute a learning rate for each parameter group, from its curvature or published multipliers.

Letters: η_g rate of group g, n_g number of its entries, A_gg diagonal block of group g in A, the
curvature (preconditioned for Adam) that the optimiser's step sees.
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
"""Multipliers of the base rate by role; other roles have multiplier 1."""


def blockwise_learning_rates(
    model: nn.Module,
    groups: Mapping[str, curvature.ParameterGroup] | None = None,
    *,
    base: float,
    rule: str = "measured",
    norms: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Make parameter groups for a torch optimiser, each with a separate learning rate.

    `measured`: η_g = c / norms[g]. c makes the geometric mean of the rates over all trainable
    entries, ∏ η_g^(n_g / n), equal to `base`. A step η_g on a quadratic is stable if
    η_g λ_max(A_gg) is below a number of the optimiser (2 for gradient descent). Since
    λ_max(A_gg) ≤ ‖A_gg‖_F, each group gets the same fraction of the rate that its norm proves
    stable. For gradient descent, with or without momentum, A is H (`group_norms`); for Adam it is
    D^(-1/2) H D^(-1/2), with the norms of `PreconditionedHessian`. Norms may also be largest
    eigenvalues (`preconditioned_sharpness`), for which the bound is exact.

    `published`: η_g = base · 1 (norm), 4 (value, projection), 6 (MLP), 8 (query, key),
    10 (embedding), tuned for AdamW on language models of 0.12 to 2 billion parameters; `base` is
    the best single rate of all groups. Gains, routers, an untied head and other roles are not in
    that table and keep `base`, as the head does in the authors' scripts.

    Not claimed: that training is faster than with one tuned rate; stability despite blocks between
    two groups (with G groups and A positive semi-definite they reduce the stable rate by a factor
    of at most G); that curvature stays as measured, also over the long steps that tiny curvature
    allows (look at the rates first); that the noise of gradients, which `norms` ignore, requires
    the same rates.

    Args:
        model: model whose trainable parameters are optimised.
        groups: groups by name, which together contain each trainable entry once; by default those
            of `parameter_groups`.
        base: learning rate, above 0.
        rule: `measured` or `published`.
        norms: only for `measured`: curvature of each group, above 0, as a number, an estimate or
            the parts that `group_norms` returns (`full` is used).

    Returns:
        Dictionaries with `params`, `lr` and `name` in the order of `model.named_parameters()`, for
        `torch.optim.AdamW(...)` or `Trainer(optimizer_cls_and_kwargs=(AdamW, {"params": ...}))`.
        They contain a tied tensor once. Weight decay is not set; callers may set it by name. A
        tensor with entries of several groups (a fused query-key-value weight) gets the smallest of
        their rates, and a group named after all of them, joined by " + ".

    Raises:
        ArgumentError: unknown rule; a base or norm that is not a number above 0; norms that are
            missing or not allowed; groups of another model, or groups that do not contain each
            trainable entry once.

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
    """Map each parameter to the names of its groups; check that groups partition all entries."""
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
    """Read the norm of a group: a number, an estimate, or the parts that `group_norms` returns."""
    found: Any = given.get("full") if isinstance(given, Mapping) else given
    found = getattr(found, "value", found)
    advice = "; measure its part 'full', after some steps where it is 0 at first"
    _check_number(f"norms[{group!r}]", found, advice)
    return float(found)


def _check_number(what: str, value: Any, advice: str = "") -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{what}: expected a finite number above 0, got {value!r}{advice}")
