"""Linear operators, given by their matvec: the base class of every curvature operator.

Letters: M rows, N columns, K columns multiplied together.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, singledispatch, wraps
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hessblocks.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from curvlinops._torch_base import PyTorchLinearOperator
    from scipy.sparse.linalg import LinearOperator as ScipyLinearOperator

Shapes = Sequence[tuple[int, ...]]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class LinearOperator(abc.ABC):
    """Linear operator: an (M, N) real matrix given by its product with a block of vectors.

    Subclasses define `_matmat`, and `_rmatmat` unless they are symmetric.

    Examples:
        >>> import torch, hessblocks as hb
        >>> class Tripled(hb.LinearOperator):
        ...     def _matmat(self, columns):
        ...         return 3 * columns
        >>> A = Tripled((4, 4), dtype=torch.float32, device=torch.device("cpu"), symmetric=True)
        >>> print(hb.trace(A + hb.identity_like(A)))
        16 (exact)
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        symmetric: bool = False,
        positive_semidefinite: bool = False,
    ) -> None:
        """Set shape, dtype, device and symmetry.

        Args:
            shape: (M, N).
            dtype: dtype of the vectors it takes and returns.
            device: device of the vectors it takes and returns.
            symmetric: whether it equals its adjoint; then M = N.
            positive_semidefinite: whether no eigenvalue is negative; implies `symmetric`.
        """
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.symmetric = symmetric or positive_semidefinite
        self.positive_semidefinite = positive_semidefinite

    def __repr__(self) -> str:
        """Print class, shape and symmetry, on one line."""
        kind = ", symmetric" * self.symmetric
        if self.positive_semidefinite:
            kind = ", positive semi-definite"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}({self.shape[0]:,} × {self.shape[1]:,}, {dtype}, "
            f"{self.device}{kind})"
        )

    @abc.abstractmethod
    def _matmat(self, columns: Tensor) -> Tensor:
        """Multiply (N, K) columns, as (M, K)."""

    def _rmatmat(self, columns: Tensor) -> Tensor:
        """Multiply (M, K) columns by the adjoint, as (N, K)."""
        if self.symmetric:
            return self._matmat(columns)
        raise NotImplementedError(f"{type(self).__name__} has no adjoint product")

    def __mul__(self, factor: float) -> LinearOperator:
        """Multiply the operator by a number."""
        return CombinedOperator([(factor, self)])

    __rmul__ = __mul__

    def __neg__(self) -> LinearOperator:
        """Multiply the operator by −1."""
        return self * -1.0

    def __add__(self, other: LinearOperator) -> LinearOperator:
        """Add another operator of the same shape."""
        return CombinedOperator([(1.0, self), (1.0, other)])

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        """Subtract another operator of the same shape."""
        return CombinedOperator([(1.0, self), (-1.0, other)])

    @overload
    def __matmul__(self, vectors: Float[Tensor, "N ..."]) -> Float[Tensor, "M ..."]: ...

    @overload
    def __matmul__(self, vectors: LinearOperator) -> LinearOperator: ...

    def __matmul__(
        self, vectors: Float[Tensor, "N ..."] | LinearOperator
    ) -> Float[Tensor, "M ..."] | LinearOperator:
        """Multiply a vector (N,) (a matvec), columns (N, K) or another operator (N, L).

        Returns:
            The product, (M,) or (M, K); for an operator, the composed operator, (M, L).

        Raises:
            ArgumentError: neither tensor nor operator, or a wrong shape, dtype or device.
        """
        if isinstance(vectors, LinearOperator):
            return ComposedOperator(self, vectors)
        if not isinstance(vectors, Tensor):
            raise ArgumentError(
                f"operator @ vectors: expected a tensor, got {type(vectors).__name__}; "
                "use torch.as_tensor(vectors, dtype=operator.dtype, device=operator.device)"
            )
        if vectors.ndim not in (1, 2) or vectors.shape[0] != self.shape[1]:
            raise ArgumentError(
                f"operator @ vectors: expected ({self.shape[1]},) or ({self.shape[1]}, columns), "
                f"got {tuple(vectors.shape)}"
            )
        if vectors.dtype != self.dtype or vectors.device != self.device:
            raise ArgumentError(
                f"operator @ vectors: expected {self.dtype} on {self.device}, got {vectors.dtype} "
                f"on {vectors.device}; use vectors.to(operator.device, operator.dtype)"
            )
        if vectors.ndim == 1:
            return self._matmat(vectors[:, None])[:, 0]
        return self._matmat(vectors)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what products share, such as the autograd graphs of a Hessian, until the block ends.

        Estimators enter such a block themselves. An operator of a model refuses products where the
        model was changed inside of the block.

        Examples:
            >>> import torch, hessblocks as hb
            >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
            >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
            >>> H, vector = hb.Hessian(problem), torch.ones(2)
            >>> with H.kept():  # one graph for three products
            ...     for _ in range(3):
            ...         vector = H @ vector
            >>> vector
            tensor([ 1., 64.])
        """
        with ExitStack() as stack:
            for part in tree_leaves(list(vars(self).values())):
                if isinstance(part, LinearOperator):
                    stack.enter_context(part.kept())
            yield

    def adjoint(self) -> LinearOperator:
        """Return the transposed operator, (N, M)."""
        return self if self.symmetric else AdjointOperator(self)

    def dense(self) -> Float[Tensor, "M N"]:
        """Assemble the whole matrix, (M, N); costs N products and M·N numbers."""
        return self._matmat(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    def to_scipy(self) -> ScipyLinearOperator:
        """Wrap the operator for scipy's solvers, such as `eigsh`, which then run inside `kept`."""
        from scipy.sparse.linalg import LinearOperator as ScipyLinearOperator

        def product(operator: LinearOperator, array: Any) -> Any:
            columns = torch.as_tensor(array, device=self.device)
            if columns.is_complex():
                raise ArgumentError("to_scipy: complex vectors; give real and imaginary parts")
            columns = columns.to(self.dtype)
            flat = columns.reshape(columns.shape[0], -1)
            return operator._matmat(flat).reshape(-1, *columns.shape[1:]).cpu().numpy()

        forth, back = partial(product, self), partial(product, self.adjoint())
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return ScipyLinearOperator(
            self.shape, matvec=forth, rmatvec=back, matmat=forth, rmatmat=back, dtype=dtype
        )

    def _tensors(self) -> tuple[Shapes, Shapes]:
        """Return the shapes of the tensors in a flat vector of the columns, and of the rows."""
        return [(self.shape[1],)], [(self.shape[0],)]

    def to_curvlinops(self) -> PyTorchLinearOperator:
        """Wrap the operator for curvlinops (`xtrace`, spectra, conjugate gradients, ...).

        The wrapper accepts flat vectors (N,), matrices (N, K) and lists of tensors. For curvature
        operators, their sums and multiples, a list has one tensor per parameter, in its shape; for
        a group with parts of parameters, one per part. The order is that of the group:
        `model.named_parameters()`, except for custom groups.

        Returns:
            An operator with the same products and adjoint; a product has the form of its argument.

        Raises:
            RunError: curvlinops is not installed.
        """
        try:
            from curvlinops._torch_base import PyTorchLinearOperator
        except ImportError as error:
            raise RunError(
                "to_curvlinops: curvlinops is not installed; "
                "pip install --no-deps curvlinops-for-pytorch backpack-for-pytorch einconv unfoldNd"
            ) from error

        class Wrapped(PyTorchLinearOperator):  # type: ignore[misc, unused-ignore]
            """Operator from tensors to tensors, each with a last axis of several vectors."""

            def __init__(self, operator: LinearOperator) -> None:
                super().__init__(*operator._tensors())
                self.SELF_ADJOINT = operator.symmetric
                self._of = operator

            def _matmat(self, X: list[Tensor]) -> list[Tensor]:
                product = self._of @ torch.cat([x.reshape(-1, x.shape[-1]) for x in X])
                pieces = zip(product.split(self._out_shape_flat), self._out_shape, strict=True)
                return [piece.reshape(*shape, -1) for piece, shape in pieces]

            def _adjoint(self) -> Any:
                return Wrapped(self._of.adjoint())

            device = property(lambda self: self._of.device)
            dtype = property(lambda self: self._of.dtype)

        return Wrapped(self)


class AdjointOperator(LinearOperator):
    """Adjoint (transpose) of another operator."""

    def __init__(self, inner: LinearOperator) -> None:
        """Wrap `inner`; nothing is computed."""
        super().__init__((inner.shape[1], inner.shape[0]), dtype=inner.dtype, device=inner.device)
        self._of = inner

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._of._rmatmat(columns)

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._of._matmat(columns)

    def _tensors(self) -> tuple[Shapes, Shapes]:
        columns, rows = self._of._tensors()
        return rows, columns

    def adjoint(self) -> LinearOperator:
        """Return the operator that was wrapped."""
        return self._of


class CombinedOperator(LinearOperator):
    """Linear combination Σ c_k A_k: sums, differences and multiples of operators."""

    terms: Sequence[tuple[float, LinearOperator]]
    """Pairs of c_k and A_k, where no A_k is a sum."""

    def __init__(self, terms: Sequence[tuple[float, LinearOperator]]) -> None:
        """Store numbers c_k and operators A_k; nested sums are flattened.

        Raises:
            ArgumentError: a factor that is no finite number, or operators that differ in shape,
                dtype or device.
        """
        flat: list[tuple[float, LinearOperator]] = []
        for factor, term in terms:
            number = isinstance(factor, Real) and not isinstance(factor, bool)
            if not number or not math.isfinite(factor):
                got = repr(factor) if number else type(factor).__name__
                raise ArgumentError(f"operator: expected a finite number as factor, got {got}")
            if not isinstance(term, LinearOperator):
                raise ArgumentError(
                    f"operator: expected another operator to add, got {type(term).__name__}; a "
                    "multiple of the identity is c * linalg.identity_like(operator)"
                )
            inner = term.terms if isinstance(term, CombinedOperator) else [(1.0, term)]
            flat += [(float(factor) * weight, part) for weight, part in inner]
        first = flat[0][1]
        _check_kinds(first, [term for _, term in flat], (0, 1))
        super().__init__(
            first.shape,
            dtype=first.dtype,
            device=first.device,
            symmetric=all(term.symmetric for _, term in flat),
            positive_semidefinite=all(c >= 0 and term.positive_semidefinite for c, term in flat),
        )
        self.terms = flat

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._added(term._matmat(columns) for _, term in self.terms)

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._added(term._rmatmat(columns) for _, term in self.terms)

    def _tensors(self) -> tuple[Shapes, Shapes]:
        """Return the shapes of the term with most tensors; an identity has only a flat vector."""
        return max(
            (term._tensors() for _, term in self.terms), key=lambda shapes: sum(map(len, shapes[0]))
        )

    def _added(self, products: Iterable[Tensor]) -> Tensor:
        total: Tensor | None = None
        for (factor, _), product in zip(self.terms, products, strict=True):
            total = factor * product if total is None else total.add_(product, alpha=factor)
        assert total is not None
        return total


class ComposedOperator(LinearOperator):
    """Product A B of two operators, applied one after the other."""

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        """Hold A, (M, N), and B, (N, L).

        Raises:
            ArgumentError: shapes that do not fit, or another dtype or device.
        """
        _check_kinds(left, [right], ())
        if left.shape[1] != right.shape[0]:
            raise ArgumentError(
                f"operator @ operator: expected {left.shape[1]} rows on the right, got "
                f"{right.shape[0]}"
            )
        shape = (left.shape[0], right.shape[1])
        super().__init__(shape, dtype=left.dtype, device=left.device)
        self._left, self._right = left, right

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._left._matmat(self._right._matmat(columns))

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._right._rmatmat(self._left._rmatmat(columns))


class IdentityOperator(LinearOperator):
    """Identity operator, which returns a copy of each vector."""

    def __init__(self, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        """Make an identity for vectors of `size` entries."""
        super().__init__((size, size), dtype=dtype, device=device, positive_semidefinite=True)

    def _matmat(self, columns: Tensor) -> Tensor:
        return columns.clone()  # the caller may write into a product


def identity_like(operator: LinearOperator | Operand) -> IdentityOperator:
    """Make an identity that can be added to an operator.

    Returns:
        An operator of the same size, dtype and device.

    Raises:
        ArgumentError: no operator, or one that is not square.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> H = hb.Hessian(hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression"))
        >>> (H + 0.5 * hb.identity_like(H)).dense().tolist()  # damped
        [[1.5, 0.0], [0.0, 4.5]]
    """
    operator = operator_of(operator)
    if operator.shape[0] != operator.shape[1]:
        raise ArgumentError(f"operator: expected a square one, got shape {operator.shape}")
    return IdentityOperator(operator.shape[0], dtype=operator.dtype, device=operator.device)


def _check_kinds(
    first: LinearOperator, others: Iterable[LinearOperator], axes: Sequence[int]
) -> None:
    """Check that operators have equal lengths on these axes, dtypes and devices."""
    for other in others:
        same = (other.dtype, other.device) == (first.dtype, first.device)
        if not same or any(other.shape[axis] != first.shape[axis] for axis in axes):
            raise ArgumentError(
                f"operators: {first!r} and {other!r} differ in shape, dtype or device"
            )


class DenseOperator(LinearOperator):
    """Dense operator: a matrix held in memory."""

    def __init__(
        self,
        matrix: Float[Tensor, "M N"],
        *,
        symmetric: bool = False,
        positive_semidefinite: bool = False,
    ) -> None:
        """Hold `matrix`, (M, N).

        Raises:
            ArgumentError: no matrix of floating-point numbers, or symmetric but not square.
        """
        tensor = isinstance(matrix, Tensor)
        if not tensor or matrix.ndim != 2 or not matrix.is_floating_point():
            got = f"{tuple(matrix.shape)} of {matrix.dtype}" if tensor else type(matrix).__name__
            raise ArgumentError(f"matrix: expected (M, N) floating-point numbers, got {got}")
        if (symmetric or positive_semidefinite) and matrix.shape[0] != matrix.shape[1]:
            raise ArgumentError(f"matrix: a symmetric one is square, got {tuple(matrix.shape)}")
        super().__init__(
            (matrix.shape[0], matrix.shape[1]),
            dtype=matrix.dtype,
            device=matrix.device,
            symmetric=symmetric,
            positive_semidefinite=positive_semidefinite,
        )
        self._matrix = matrix

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._matrix @ columns

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._matrix.T @ columns

    def dense(self) -> Float[Tensor, "M N"]:
        """Return the matrix itself."""
        return self._matrix


class Operand:
    """Base class of objects, such as problems, that `operator_of` converts to an operator."""


@singledispatch
def operator_of(operand: LinearOperator | Operand) -> LinearOperator:
    """Convert an operand to an operator; return an operator unchanged.

    Args:
        operand: an operator, or an operand such as a problem, which becomes its Hessian.

    Returns:
        The operator.

    Raises:
        ArgumentError: it is neither.
    """
    if isinstance(operand, LinearOperator):
        return operand
    raise ArgumentError(
        "expected an operator, such as hb.Hessian(problem), or a problem, got "
        f"{type(operand).__name__}"
    )


def _on_cpu() -> AbstractContextManager[Any]:
    """Draw probes on the CPU, whatever `torch.set_default_device` says."""
    cpu = torch.device("cpu")  # as a context it takes time at each call of torch
    return nullcontext() if torch.get_default_device() == cpu else cpu


def keeping(function: AnyFunction) -> AnyFunction:
    """Decorate an estimator: `kept` of its first argument, an operator or a problem, lasts a call.

    Args:
        function: estimator; its first argument may be of another type.

    Returns:
        The estimator with the same signature.
    """
    first = next(iter(signature(function).parameters))

    @wraps(function)
    def keep(*args: Any, **named: Any) -> Any:
        context = getattr(args[0] if args else named.get(first), "kept", nullcontext)
        with context(), _on_cpu():
            return function(*args, **named)

    return cast(AnyFunction, keep)
