"""Our operators for curvlinops' routines, where that library is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hessblocks.errors import RunError

if TYPE_CHECKING:
    from curvlinops._torch_base import PyTorchLinearOperator

    from hessblocks.linalg.operator import LinearOperator


def as_curvlinops(operator: LinearOperator) -> PyTorchLinearOperator:
    """Wrap an operator as a curvlinops one; see `LinearOperator.to_curvlinops`.

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

        @property
        def device(self) -> torch.device:
            return self._of.device

        @property
        def dtype(self) -> torch.dtype:
            return self._of.dtype

    return Wrapped(operator)
