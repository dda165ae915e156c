"""A matrix that is only ever applied: the base class of every curvature operator.

Letters: M rows, N columns, K columns multiplied together.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from curvlinops._torch_base import PyTorchLinearOperator
    from scipy.sparse.linalg import LinearOperator as ScipyLinearOperator


class LinearOperator(abc.ABC):
    """An (M, N) real matrix given by its product with a block of vectors.

    Subclasses define `_matmat`, and `_rmatmat` unless they are symmetric.
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
        """Fix what the operator promises about itself.

        Args:
            shape: (M, N).
            dtype: of the vectors it takes and returns.
            device: of the vectors it takes and returns.
            symmetric: whether it equals its adjoint; then M = N.
            positive_semidefinite: whether no eigenvalue is negative; implies `symmetric`.
        """
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.symmetric = symmetric or positive_semidefinite
        self.positive_semidefinite = positive_semidefinite

    @abc.abstractmethod
    def _matmat(self, columns: Tensor) -> Tensor:
        """Product with (N, K) columns, as (M, K)."""

    def _rmatmat(self, columns: Tensor) -> Tensor:
        """Product of the adjoint with (M, K) columns, as (N, K)."""
        if self.symmetric:
            return self._matmat(columns)
        raise NotImplementedError(f"{type(self).__name__} has no adjoint product")

    def __matmul__(self, vectors: Float[Tensor, "N ..."]) -> Float[Tensor, "M ..."]:
        """Multiply a vector (N,) or columns (N, K).

        Returns:
            The product, (M,) or (M, K).

        Raises:
            ArgumentError: no tensor, or one of the wrong shape, dtype or device.
        """
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
                f"operator @ vectors: expected {self.dtype} on {self.device}, "
                f"got {vectors.dtype} on {vectors.device}; use vectors.to(operator.device, operator.dtype)"
            )
        if vectors.ndim == 1:
            return self._matmat(vectors[:, None])[:, 0]
        return self._matmat(vectors)

    def adjoint(self) -> LinearOperator:
        """The transposed operator, (N, M)."""
        return self if self.symmetric else AdjointOperator(self)

    def dense(self) -> Float[Tensor, "M N"]:
        """The whole matrix, (M, N); costs N products and M·N numbers."""
        return self._matmat(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    def to_scipy(self) -> ScipyLinearOperator:
        """The same operator for scipy's iterative solvers (`scipy.sparse.linalg.eigsh` and others)."""
        from scipy.sparse.linalg import LinearOperator as ScipyLinearOperator

        def apply(operator: LinearOperator) -> Any:
            def product(array: Any) -> Any:
                columns = torch.as_tensor(array, dtype=self.dtype, device=self.device)
                flat = columns.reshape(columns.shape[0], -1)
                return operator._matmat(flat).reshape(-1, *columns.shape[1:]).cpu().numpy()

            return product

        return ScipyLinearOperator(
            shape=self.shape,
            dtype=torch.empty(0, dtype=self.dtype).numpy().dtype,
            matvec=apply(self),
            rmatvec=apply(self.adjoint()),
            matmat=apply(self),
            rmatmat=apply(self.adjoint()),
        )

    def to_curvlinops(self) -> PyTorchLinearOperator:
        """The same operator for curvlinops' estimators (`xtrace`, spectra and others).

        Returns:
            An operator with the same products and adjoint.

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
            """A flat operator: one input tensor, one output tensor."""

            def __init__(self, of: LinearOperator) -> None:
                super().__init__([(of.shape[1],)], [(of.shape[0],)])
                self.SELF_ADJOINT = of.symmetric
                self._of = of

            def _matmat(self, X: list[Tensor]) -> list[Tensor]:
                return [self._of @ X[0]]

            def _adjoint(self) -> Any:
                return Wrapped(self._of.adjoint())

            device = property(lambda self: self._of.device)
            dtype = property(lambda self: self._of.dtype)

        return Wrapped(self)


class AdjointOperator(LinearOperator):
    """The transpose of another operator."""

    def __init__(self, of: LinearOperator) -> None:
        """Wrap `of`; nothing is computed."""
        super().__init__((of.shape[1], of.shape[0]), dtype=of.dtype, device=of.device)
        self._of = of

    def _matmat(self, columns: Tensor) -> Tensor:
        return self._of._rmatmat(columns)

    def _rmatmat(self, columns: Tensor) -> Tensor:
        return self._of._matmat(columns)

    def adjoint(self) -> LinearOperator:
        """The operator that was wrapped."""
        return self._of


class DenseOperator(LinearOperator):
    """A matrix held in memory, as an operator."""

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
        given = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        if not isinstance(matrix, Tensor) or matrix.ndim != 2 or not matrix.is_floating_point():
            kind = f" of {matrix.dtype}" if isinstance(matrix, Tensor) else ""
            raise ArgumentError(
                f"matrix: expected (M, N) floating-point numbers, got {given}{kind}"
            )
        if (symmetric or positive_semidefinite) and matrix.shape[0] != matrix.shape[1]:
            raise ArgumentError(f"matrix: a symmetric one is square, got shape {given}")
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
        """The matrix itself."""
        return self._matrix
