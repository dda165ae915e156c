"""Hessian-vector and Gauss-Newton (GGN) products as linear operators between parameter groups.

Letters: N columns.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature.groups import (
    LEVELS,
    ParameterGroup,
    merge,
    misfit,
    overlap,
    parameter_groups,
    select_groups,
)
from hessblocks.curvature.losses import is_convex
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.totals import HessianBlock, total_products
from hessblocks.errors import ArgumentError
from hessblocks.linalg import LinearOperator, operator_of

_ONE_OF_SEVERAL = (
    'hessblocks.custom_groups(model, {"name": [patterns]})["name"] makes one group of several'
)


class CurvatureOperator(LinearOperator):
    """Block of H, H_o or H_f between two parameter groups, as a matrix-free linear operator.

    Cost: about a gradient of the loss to build the graph, then for each vector 1.4 (H_o) to 1.7 (H)
    gradients; docs/products.md has the measurements.
    """

    part: ClassVar[Part]
    """Part of the Hessian: `full` (H), `outer` (H_o) or `functional` (H_f)."""

    def __init__(
        self,
        problem: Problem,
        group: ParameterGroup | str | None = None,
        *,
        rows: ParameterGroup | str | None = None,
        columns: ParameterGroup | str | None = None,
    ) -> None:
        """Choose the rows and columns of the block.

        Args:
            problem: model, batches and loss.
            group: group of both the rows and the columns, or its name as tables print it, which may
                select several; without any group, all trainable parameters in the order of
                `model.named_parameters()`.
            rows: group of the rows, for a block between two groups; needs `columns`, and no
                `group`.
            columns: group of the columns; needs `rows`.

        Raises:
            ArgumentError: `group` together with `rows` or `columns`, one of these two without the
                other, a group that does not fit the problem's model, or a sharded model.
        """
        check_problem(problem)
        problem.check_whole()
        if group is rows is columns is None:
            group = merge("all", [*parameter_groups(problem.model, "tensor").values()])
        names = ("rows", "columns") if group is None else ("group", "group")
        if group is not None and rows is None and columns is None:
            rows = columns = group
        elif group is not None or rows is None or columns is None:
            raise ArgumentError(
                f"{type(self).__name__}: give either group, or both rows and columns, or none of "
                "them for all parameters"
            )
        square = columns is rows
        rows = check_group(problem, rows, names[0])
        columns = rows if square else check_group(problem, columns, names[1])
        self.problem = problem
        """Model, batches and loss."""
        self.rows, self.columns = rows, columns
        """Groups of the rows and of the columns."""
        like, square = problem.parameters[columns.parameters[0]], rows == columns
        super().__init__(
            (rows.size, columns.size),
            dtype=like.dtype,
            device=like.device,
            symmetric=square,
            positive_semidefinite=square and self.part == "outer" and is_convex(problem.loss),
        )

    def named_tensors(self, vector: Float[Tensor, " N"]) -> dict[str, Float[Tensor, "..."]]:
        """Reshape a vector, such as an eigenvector, into tensors by parameter name.

        Args:
            vector: (N,), such as `extreme_eigenvalues(operator).vectors[:, 0]`.

        Returns:
            A tensor in the parameter's shape for each parameter of the columns' group, by name.
            Entries outside the group are zero. Memory may be shared with `vector`.

        Raises:
            ArgumentError: `vector` is not a tensor of shape (N,).
        """
        if not isinstance(vector, Tensor) or tuple(vector.shape) != self.shape[1:]:
            raise ArgumentError(
                f"vector: expected a tensor of shape {self.shape[1:]}, got "
                f"{tuple(getattr(vector, 'shape', ())) or type(vector).__name__}; give one "
                "column, vectors[:, 0]"
            )
        named = dict(self.problem.model.named_parameters())
        like = {n: vector.new_empty(()).expand(named[n].shape) for n in self.columns.parameters}
        return {name: rows[0] for name, rows in self.columns.scatter(vector[None], like).items()}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep plan and graphs for several products; see `LinearOperator.kept`.

        Raises:
            ArgumentError: see `Problem.kept`.
        """
        with self.problem.kept():
            yield

    def _tensors(self) -> Any:
        return tuple([view.shape for view in g.views] for g in (self.columns, self.rows))

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._apply(columns, self.rows, self.columns)

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._apply(columns, self.columns, self.rows)

    def _apply(self, columns: Tensor, into: ParameterGroup, out_of: ParameterGroup) -> Tensor:
        # the caller may have frozen parameters since the operator was made
        for group in (into,) if into is out_of else (into, out_of):
            check_group(self.problem, group)
        block = HessianBlock(rows=into, columns=out_of, parts=[self.part])
        return total_products(self.problem, columns.T, block)[self.part].T


class Hessian(CurvatureOperator):
    """Hessian-vector products H z of the mean loss, H = H_o + H_f.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> H = hb.Hessian(problem)  # 2/N Σ x xᵀ, never assembled
        >>> H @ torch.ones(2)
        tensor([1., 4.])
        >>> H.dense().tolist()
        [[1.0, 0.0], [0.0, 4.0]]
    """

    part = "full"


class OuterProduct(CurvatureOperator):
    """Gauss-Newton (GGN) products H_o z with H_o = Jᵀ H_ℓ J, semi-definite for convex losses.

    A loss given as a callable may not be convex, so H_o then counts as symmetric only.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
        >>> data = [(torch.randn(8, 2), torch.randint(3, (8,)))]
        >>> problem = hb.Problem(model, data, "classification")
        >>> H, H_o, H_f = (kind(problem) for kind in (hb.Hessian, hb.OuterProduct, hb.Functional))
        >>> torch.allclose(H.dense(), (H_o + H_f).dense(), atol=1e-5)
        True
        >>> H.positive_semidefinite, H_o.positive_semidefinite
        (False, True)
    """

    part = "outer"


class Functional(CurvatureOperator):
    """Functional-Hessian products H_f z with H_f = Σ (∂ℓ/∂f) ∂²f/∂θ², the rest of H.

    It is not the difference H − H_o, but the Hessian of θ ↦ ⟨r, f(θ)⟩ with r = ∂ℓ/∂f held fixed.

    Examples:
        >>> import torch, hessblocks as hb
        >>> data = [(torch.randn(8, 2), torch.randn(8, 1))]
        >>> linear = torch.nn.Linear(2, 1)
        >>> print(hb.frobenius_norm(hb.Functional(hb.Problem(linear, data, "regression"))))
        0 (exact)
        >>> two = torch.nn.Sequential(torch.nn.Linear(2, 2), linear)  # not linear in its weights
        >>> hb.frobenius_norm(hb.Functional(hb.Problem(two, data, "regression"))).value > 0
        True
    """

    part = "functional"


operator_of.register(Problem, Hessian)  # of all trainable parameters


def check_problem(problem: Any) -> None:
    """Check that `problem` is a `Problem`.

    Raises:
        ArgumentError: `problem` is not a `Problem`.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"problem: expected hessblocks.Problem(model, batches), got {type(problem).__name__}"
        )


def check_group(problem: Any, group: Any, name: str = "group") -> ParameterGroup:
    """Check that `group` is one parameter group of the problem's model, or find it by its name.

    Args:
        problem: model, batches and loss.
        group: value to check.
        name: name of the argument that held it, for the message.

    Returns:
        The group; if a name selects several, all of them as one.

    Raises:
        ArgumentError: `problem` is not a `Problem`; `group` is not one group (a mapping or list of
            groups, for instance), names an entry twice, has a parameter that is absent from the
            model, frozen or smaller there, or is a name of other entries at another level.
    """
    check_problem(problem)
    if isinstance(group, str):
        return _named(problem.model, group, name)
    if isinstance(group, Mapping):
        example = f" such as groups[{next(iter(group))!r}]" if group else ""
        raise ArgumentError(
            f"{name}: expected one group{example}, got all {len(group)} of them; {_ONE_OF_SEVERAL}"
        )
    if not isinstance(group, ParameterGroup):
        several = f"; {_ONE_OF_SEVERAL}" if isinstance(group, list | tuple) else ""
        raise ArgumentError(
            f"{name}: expected a group of parameter_groups(model), got "
            f"{type(group).__name__}{several}"
        )
    if overlap([group]):
        raise ArgumentError(f"{name}: {group.name!r} names an entry twice; name each once")
    if (wrong := misfit(group, problem.entries)) is not None:
        raise ArgumentError(
            f"{name}: {group.name!r} does not fit the problem's model, in {wrong!r} (absent, "
            "frozen or smaller there); take the group from parameter_groups of the same model"
        )
    checked: ParameterGroup = group
    return checked


def _named(model: Any, name: str, argument: str) -> ParameterGroup:
    """Find groups by name; a role, or a pattern with * or ?, is of the first level that has it."""
    found = {}
    for level in LEVELS:
        with suppress(ArgumentError):
            found[level] = select_groups(parameter_groups(model, level), name)
    if not found:
        select_groups(parameter_groups(model), name)  # says that there is none
    (one, first), *others = found.items()
    group = merge(name, [*first.values()])
    printed = not {*"*?"} & {*name} and name != group.role
    for level, chosen in others:
        if printed and _entries(merge(name, [*chosen.values()])) != _entries(group):
            raise ArgumentError(
                f"{argument}: {name!r} has other entries at level {level!r} than at {one!r}; give "
                f"parameter_groups(model, {one!r})[{next(iter(first))!r}], or that of {level!r}"
            )
    return group


def _entries(group: ParameterGroup) -> Counter[str]:
    """Count a group's entries in each parameter; levels split groups, so equal counts are equal."""
    return sum((Counter({view.parameter: view.size}) for view in group.views), Counter[str]())


def groups_of(problem: Any, groups: Any) -> Mapping[str, ParameterGroup]:
    """Check groups, or make the default ones.

    Args:
        problem: model, batches and loss.
        groups: groups by name; None: all trainable parameters, by layer and role.

    Returns:
        The groups by name, at least one.

    Raises:
        ArgumentError: `problem` is not a `Problem`; `groups` is not a mapping or is empty; or
            `check_group` refuses one of them.
    """
    check_problem(problem)
    if groups is None:
        return parameter_groups(problem.model)
    if not isinstance(groups, Mapping):
        raise ArgumentError(
            "groups: expected groups by name, as parameter_groups(model) gives them, "
            f"got {type(groups).__name__}"
        )
    if not groups:
        raise ArgumentError("groups: expected at least one group, got none")
    return {name: check_group(problem, g, f"groups[{name!r}]") for name, g in groups.items()}
