"""Learning rate for each parameter group, from its curvature or from published multipliers.

Letters: η_g rate of group g, n_g its entries, A_gg its own block of the curvature that the optimiser's step meets.
"""

from __future__ import annotations

import math
import warnings
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


class SharedTensorWarning(UserWarning):
    """Groups of different rates share a tensor, to which an optimiser gives one."""


def blockwise_learning_rates(
    model: nn.Module,
    groups: Mapping[str, curvature.ParameterGroup] | None = None,
    *,
    base: float,
    rule: str = "measured",
    norms: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser of torch, each with its own learning rate.

    `measured`: η_g = c / norms[g], with the one c for which the geometric mean of the rates over all trainable
    entries, ∏ η_g^(n_g / n), is `base`. A step η_g on a quadratic is stable where η_g λ_max(A_gg) is below a number of the
    optimiser (2 for gradient descent), and λ_max(A_gg) ≤ ‖A_gg‖_F: all groups get the same share of the rate that
    their own norm guarantees. A is H for gradient descent, with momentum or without (`group_norms`); for Adam it is
    D^(-1/2) H D^(-1/2), whose norms are those of `PreconditionedHessian`. Norms may also be largest eigenvalues
    (`preconditioned_sharpness`), of which the bound is exact.

    `published`: η_g = base · 1 (norm), 4 (value, projection), 6 (MLP), 8 (query, key), 10 (embedding), tuned for AdamW
    on language models of 0.12 to 2 billion parameters; `base` is the rate tuned for one rate for all. Gains,
    routers, an untied head and other roles are not in that table and keep `base`, as the authors' scripts do with a head.

    What this does not claim: that training is faster than with one tuned rate; anything of blocks between two groups
    (with G groups and A positive semi-definite these can lower what is stable by a factor of G at most); that curvature stays as
    it was measured, also over a step as long as a block of tiny curvature allows (look at the rates first); or that noise of gradients, which `norms` do not see, asks for the same rates.

    Args:
        model: whose trainable parameters are moved.
        groups: by name, which together hold each trainable entry once, as `parameter_groups` gives them, which gives them by default too.
        base: learning rate, above 0.
        rule: `measured` or `published`.
        norms: for `measured` alone: the curvature of each group above 0, as a number, an estimate or
            what `group_norms` gives (its part `full`).

    Returns:
        Dictionaries with `params`, `lr` and `name` in the order of `model.named_parameters()`, for
        `torch.optim.AdamW(...)` or `Trainer(optimizer_cls_and_kwargs=(AdamW, {"params": ...}))`; a tied tensor once.
        Weight decay is left to the caller, who may set it by name. A tensor with entries of several groups (a fused weight of
        query, key and value) takes the smallest of their rates; its group is named after all of them, joined by " + ".

    Raises:
        ArgumentError: an unknown rule, a base or norm that is no number above 0, norms that are missing or not wanted,
            groups of another model, or that do not hold each trainable entry once.

    Warns:
        SharedTensorWarning: groups of different rates share a tensor.

    Source: rule `published` and its authors' scripts: Wang et al. (2025), The sharpness disparity principle,
        arXiv 2502.19002; stability with a preconditioner: Cohen et al. (2022), arXiv 2207.14484.
    """
    check_name("rule", rule, RULES)
    _check_number("base", base)
    groups = curvature.parameter_groups(model) if groups is None else groups
    named = {
        name: parameter
        for name, parameter in curvature.plain_model(model, sharded=True).named_parameters()
        if parameter.requires_grad
    }
    owners = _owners(groups, named)
    relative = _published(groups, norms) if rule == "published" else _measured(groups, norms)
    together: dict[tuple[str, ...], list[str]] = {}
    for name in named:
        together.setdefault(owners[name], []).append(name)
    rates = {own: min(relative[one] for one in own) for own in together}
    _tell_of_shared(together, relative)
    middle = 0.0 if rule == "published" else _mean_logarithm(rates, together, named)
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
    """The groups of each parameter, which partition its entries."""
    if not isinstance(groups, Mapping) or not all(
        isinstance(group, curvature.ParameterGroup) for group in groups.values()
    ):
        raise ArgumentError(
            "groups: expected groups by name, as parameter_groups(model) gives them, "
            f"got {type(groups).__name__}"
        )
    sizes = {name: parameter.numel() for name, parameter in named.items()}
    for name, group in groups.items():
        if (wrong := curvature.misfit(group, sizes)) is not None:
            raise ArgumentError(
                f"groups: {name!r} does not fit the model, in {wrong!r} (absent, frozen or smaller there); take the "
                "groups from parameter_groups of the same model"
            )
    for name, owned in curvature.check_disjoint(groups.values(), named).items():
        if not owned.all():
            raise ArgumentError(
                f"groups: {int((~owned).sum()):,} entries of {name!r} belong to no group; every trainable parameter needs a "
                "rate, as the groups of parameter_groups(model) give it"
            )
    titles: dict[str, list[str]] = {name: [] for name in named}
    for title, group in groups.items():
        for name in group.parameters:
            titles[name].append(title)
    return {name: tuple(own) for name, own in titles.items()}


def _published(
    groups: Mapping[str, curvature.ParameterGroup], norms: Mapping[str, Any] | None
) -> dict[str, float]:
    if norms is not None:
        raise ArgumentError("norms: rule='published' takes none; leave them out or use 'measured'")
    return {name: PUBLISHED.get(group.role, 1.0) for name, group in groups.items()}


def _measured(
    groups: Mapping[str, curvature.ParameterGroup], norms: Mapping[str, Any] | None
) -> dict[str, float]:
    if not isinstance(norms, Mapping):
        raise ArgumentError(
            "norms: rule='measured' needs the curvature of each group, such as hb.group_norms(problem, groups), "
            f"got {type(norms).__name__}"
        )
    if missing := [name for name in groups if name not in norms]:
        raise ArgumentError(
            f"norms: {missing[0]!r} and {len(missing) - 1} more groups have none; measure all groups that are given"
        )
    found = {}
    for name in groups:
        given = norms[name].get("full") if isinstance(norms[name], Mapping) else norms[name]
        value = getattr(given, "value", given)
        _check_number(
            f"norms[{name!r}]",
            value,
            "; a group without measured curvature has no rate of its own: measure the part 'full', after some "
            "steps where it is 0 at first, or put the group together with another",
        )
        found[name] = 1 / float(value)
    return found


def _check_number(what: str, value: Any, advice: str = "") -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{what}: expected a finite number above 0, got {value!r}{advice}")


def _tell_of_shared(
    together: Mapping[tuple[str, ...], list[str]], relative: Mapping[str, float]
) -> None:
    """Warn of tensors whose groups would have different rates."""
    shared = [
        (own, name)
        for own, names in together.items()
        if len({relative[one] for one in own}) > 1
        for name in names
    ]
    if shared:
        own, name = shared[0]
        warnings.warn(
            f"groups: {len(shared)} tensors hold entries of several groups, such as {name!r} of {', '.join(own)}, and take "
            "the smallest of their rates; groups that share no tensor (hessblocks.custom_groups) need no such choice",
            SharedTensorWarning,
            stacklevel=3,
        )


def _mean_logarithm(
    rates: Mapping[tuple[str, ...], float],
    together: Mapping[tuple[str, ...], list[str]],
    named: Mapping[str, Tensor],
) -> float:
    """Mean of the rates' logarithms over all entries."""
    sizes = {own: sum(named[name].numel() for name in names) for own, names in together.items()}
    return sum(n * math.log(rates[own]) for own, n in sizes.items()) / sum(sizes.values())
