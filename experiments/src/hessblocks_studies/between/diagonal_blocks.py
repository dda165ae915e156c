"""Measure what block-diagonal approximations of the Gauss-Newton matrix (GGN) leave out.

Letters: H the matrix H_o, B its diagonal blocks, N parameters, G groups, K probes z, θ parameters,
g gradient, λ and u the largest eigenvalues and their vectors.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks import curvature
from hessblocks.curvature import OuterProduct, ParameterGroup, Problem
from hessblocks.linalg import Eigenvalues, extreme_eigenvalues, solve
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks_studies import shared

MATRICES, LAYERS, WHOLE = "weight matrices", "layers", "whole model"
DIVISIONS = (MATRICES, LAYERS)
"""Divisions of the parameters: by layer and role, by layer; other parameters stand alone."""
SHARE, DEFLATED = "share between", "share between, without outliers"
"""1 − ‖B‖² / ‖H‖² in squared Frobenius norms, of H or of H − Σ λ u uᵀ."""
COSINE = "cosine of H g and B g"
DECREASE = "decrease of the loss"
"""L(θ) − L(θ + step) in nats per token, on windows by which nothing was chosen."""
DAMPING, SCALE = "damping of the step, of the largest eigenvalue", "factor of the step"
"""What was chosen for a step; the gradient's has no damping."""
UNSOLVED = "systems of the step that did not converge"
GRADIENT = "gradient"
OUTLIERS = 3
"""Number of largest eigenvalues that are taken out."""
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""Dampings tried, as shares of the largest eigenvalue."""
SCALES = tuple(2.0**power for power in range(-6, 2))
"""Factors tried of a step (B + damping)⁻¹ g."""
RATES = tuple(2.0**power for power in range(-6, 9))
"""Factors tried of the step g / λ."""
TOLERANCE, ITERATIONS = 1e-2, 200
"""Relative residual and number of iterations at which conjugate gradients stop."""

Tensors = Mapping[str, Float[Tensor, "K ..."]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Direction of a step."""

    direction: Tensors
    """By parameter name."""
    damping: float | None = None
    """As a share of the largest eigenvalue; None for the gradient."""
    unsolved: int = 0
    """Number of systems whose solution did not converge."""


def divided(model: nn.Module, division: str) -> dict[str, ParameterGroup]:
    """Divide a model's parameters into groups.

    Args:
        model: a causal language model.
        division: a name in `DIVISIONS`, or `WHOLE`.

    Returns:
        The groups by name.
    """
    groups = curvature.parameter_groups(model)
    names = {
        name: WHOLE
        if division == WHOLE
        else name
        if division == MATRICES or group.layer is None
        else f"layer {group.layer}"
        for name, group in groups.items()
    }
    parts: dict[str, list[ParameterGroup]] = {}
    for name, group in groups.items():
        parts.setdefault(names[name], []).append(group)
    return {name: curvature.merge(name, own) for name, own in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """GGN of a problem, and its diagonal blocks."""

    problem: Problem
    """Model and batch."""

    @cached_property
    def whole(self) -> OuterProduct:
        """H of all parameters."""
        return OuterProduct(self.problem)

    @cached_property
    def gradient(self) -> Float[Tensor, " N"]:
        """Gradient of the loss, in the order of `whole`."""
        (batch,) = self.problem.batches
        named = dict(self.problem.model.named_parameters())
        loss = self.problem.model(input_ids=batch.inputs, labels=batch.inputs).loss
        found = torch.autograd.grad(loss, [named[name] for name in self.whole.rows.parameters])
        return torch.cat([one.flatten() for one in found])

    @cached_property
    def outliers(self) -> Eigenvalues:
        """Largest eigenvalues of H, and their vectors."""
        return extreme_eigenvalues(self.whole, OUTLIERS, "largest", copies=False)

    def tensors(self, vectors: Float[Tensor, "K N"]) -> dict[str, Float[Tensor, "K ..."]]:
        """Reshape vectors in the order of `whole` into tensors by parameter name."""
        return self.whole.rows.scatter(vectors, self.problem.parameters)

    def share_rows(self, count: int, seed: int) -> Iterator[Row]:
        """Estimate the share of ‖H‖² between blocks with probes, with and without outliers.

        Args:
            count: K.
            seed: seed of the probes.

        Yields:
            A row per division and quantity; its standard error is over probes.
        """
        draw = torch.Generator().manual_seed(seed)
        signs = 2 * torch.randint(2, (count, self.whole.shape[0]), generator=draw) - 1
        signs = signs.to(self.whole.device, self.whole.dtype)
        outliers, values = (one.to(signs) for one in (self.outliers.vectors, self.outliers.values))
        mixed = signs @ outliers * values  # λ u·z, (K, outliers)
        probes, pushed = self.tensors(signs), self.tensors((self.whole @ signs.T).T)
        directions = self.tensors(outliers.T.contiguous())
        for division in DIVISIONS:
            sums = torch.zeros(4, count, dtype=torch.float64)
            for group in divided(self.problem.model, division).values():
                z, own, u = (_part(group, one) for one in (probes, pushed, directions))
                block = (OuterProduct(self.problem, group) @ z.T).T
                alone = block - (z @ u.T * values) @ u
                sums += torch.stack([_squares(one) for one in (own, block, own - mixed @ u, alone)])
            for name, all_of, inside in ((SHARE, *sums[:2]), (DEFLATED, *sums[2:])):
                value, error = _left_out(all_of, inside)
                yield shared.measured(name, value, "estimate", group=division, standard_error=error)

    def cosine_rows(self) -> Iterator[Row]:
        """Compute the cosine between H g and B g for every division."""
        pushed = self.tensors((self.whole @ self.gradient)[None])
        start = self.tensors(self.gradient[None])
        for division in DIVISIONS:
            both = torch.zeros(3, dtype=torch.float64)
            for group in divided(self.problem.model, division).values():
                own, z = (_part(group, one)[0] for one in (pushed, start))
                block = OuterProduct(self.problem, group) @ z
                pairs = ((own, block), (own, own), (block, block))
                both += torch.stack([(a.double() * b.double()).sum() for a, b in pairs]).cpu()
            inner, *squares = both.tolist()
            yield shared.measured(COSINE, inner / math.sqrt(math.prod(squares)), group=division)

    def step_rows(self, choosing: Problem, judging: Problem) -> Iterator[Row]:
        """Measure the decrease of the loss by damped Gauss-Newton steps, H or B, and by gradients.

        Damping and scale are the best of `DAMPINGS` and `SCALES` on `choosing`.

        Args:
            choosing: the same model on other windows.
            judging: the same model on further windows.

        Yields:
            Rows per kind of step: the decrease, what was chosen, the systems that did not converge.
        """
        largest, model = float(self.outliers.values[0]), self.problem.model
        steps = {GRADIENT: [Step(direction=self.tensors(self.gradient[None] / largest))]}
        for division in (WHOLE, *DIVISIONS):
            groups = divided(model, division)
            steps[division] = [self._solved(groups, damping, largest) for damping in DAMPINGS]
        for name, each in steps.items():
            scales = RATES if name == GRADIENT else SCALES
            tried = [(one, scale) for one in each for scale in scales]
            best, scale = min(tried, key=lambda step: self._loss(choosing, *step))
            decrease = judging.value(twice=False) - self._loss(judging, best, scale)
            yield shared.measured(DECREASE, decrease, group=name)
            yield shared.measured(SCALE, scale, group=name)
            if best.damping is not None:
                yield shared.measured(DAMPING, best.damping, group=name)
                yield shared.measured(UNSOLVED, best.unsolved, group=name)

    def _solved(self, groups: Mapping[str, ParameterGroup], damping: float, largest: float) -> Step:
        """Solve (B + damping · largest) x = g group by group."""
        start, unsolved = self.tensors(self.gradient[None]), 0
        found = {name: torch.zeros_like(one) for name, one in start.items()}
        for group in groups.values():
            right = _part(group, start)[0]
            solved = solve(
                OuterProduct(self.problem, group),
                right,
                damping=damping * largest,
                tolerance=TOLERANCE,
                max_products=ITERATIONS,
            )
            unsolved += not solved.converged
            own = group.scatter(solved.values[None], self.problem.parameters)
            for name, one in own.items():
                found[name] += one
        return Step(direction=found, damping=damping, unsolved=unsolved)

    @staticmethod
    def _loss(problem: Problem, step: Step, scale: float) -> float:
        own = step.direction
        moved = {name: p - scale * own[name][0] for name, p in problem.parameters.items()}
        return problem.value(moved, twice=False)


def _part(group: ParameterGroup, tensors: Tensors) -> Float[Tensor, "K size"]:
    some = next(iter(tensors.values()))
    into: Tensor = some.new_zeros(len(some), group.size)
    group.collect(tensors, into)
    return into


def _squares(vectors: Float[Tensor, "K size"]) -> Float[Tensor, " K"]:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    return norms.square()


def _left_out(all_of: Float[Tensor, " K"], inside: Float[Tensor, " K"]) -> tuple[float, float]:
    """Compute 1 − Σ inside / Σ all, and its standard error over probes by the delta method."""
    ratio = float(inside.sum() / all_of.sum())
    _, error = mean_and_error(((inside - ratio * all_of) / all_of.mean()).tolist())
    return 1 - ratio, error


def sampled_rows(problem: Problem, samples: int, seed: int) -> Iterator[Row]:
    """Estimate the share of ‖H‖² between blocks from sampled gradients, for large models.

    Args:
        problem: model and batch.
        samples: number of sampled gradients, a multiple of 4.
        seed: seed of the samples.

    Yields:
        A row per division.
    """
    for division in DIVISIONS:
        groups = divided(problem.model, division)
        found = curvature.curvature_map(
            problem, groups, "outer", samples // 4, seed, method="sampled"
        ).off_diagonal_share
        assert found is not None
        yield shared.measured(
            SHARE, found.value, "estimate", group=division, standard_error=found.standard_error
        )


def problem_of(model: nn.Module, windows: Int[Tensor, "windows tokens"]) -> Problem:
    """Make the problem of the next token on windows."""
    return Problem(model, {"input_ids": windows}, loss="causal-lm")
