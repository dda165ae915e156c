"""The theorems as printed in the paper, in matrix form, against the token form and autodiff.

Z_1 and Z_2 are built here and nowhere else: for L tokens and width D they have L·D³ and L·D⁵
entries, almost all of them zero. Letters: L tokens, D width, K query-key width, V value width;
`vec` is row by row.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, eye

from hessblocks.theory.arguments import attention_hessian
from tests.theory.autodiff import reference_hessian

L, K, V = 3, 2, 2


def kron(left: Tensor, right: Tensor) -> Tensor:
    return torch.kron(left.contiguous(), right.contiguous())


def commutation(rows: int, columns: int) -> Tensor:
    """vec(W) to vec(Wᵀ) for W of (rows, columns)."""
    identity = eye(rows * columns).double()
    return identity.view(rows, columns, -1).transpose(0, 1).reshape(rows * columns, -1)


@dataclass
class Theorem:
    """One sequence with squared loss, ℓ = ‖F − Y‖² / (L V)."""

    width: int

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        D = self.width
        self.X, self.Y = torch.randn(L, D).double(), torch.randn(L, V).double()
        self.WQ, self.WK = torch.randn(D, K).double(), torch.randn(D, K).double()
        self.WV = torch.randn(D, V).double()
        self.I = eye(L).double()
        self.c = 2 / (L * V)
        scores = self.X @ self.WQ @ self.WK.T @ self.X.T / K**0.5
        softmax = lambda T: T.view(L, L).softmax(-1).flatten()  # noqa: E731
        flat = scores.flatten()
        A = softmax(flat).view(L, L)
        first = torch.func.jacrev(softmax)(flat)
        second = torch.func.jacrev(torch.func.jacrev(softmax))(flat)
        self.M1 = A @ self.X
        XX = kron(self.X, self.X)
        self.Z1 = kron(self.I, self.X.T) @ first @ XX
        carriers = kron(kron(kron(self.I, self.X.T), self.X.T), self.X.T)
        self.Z2 = carriers @ second.view(L**4, L**2) @ XX
        self.residual = (self.M1 @ self.WV - self.Y).flatten()[None]
        identity = eye(D).double()
        self.by_query = kron(identity, self.WK)
        self.by_key = kron(self.WQ, identity) @ commutation(D, K)

    def contraction(self, m: int) -> Tensor:
        """Their R_m."""
        return kron(self.residual, eye(m).double())

    def spread(self, count: int) -> Tensor:
        """Their S: vec of (mᵀ ⊗ I_count) from m."""
        identity = eye(count).double()
        copies = kron(identity.flatten()[:, None], eye(self.width).double())
        return kron(identity, commutation(count, self.width)) @ copies

    def outer(self) -> dict[str, Tensor]:
        """Theorem 3.1."""
        values = kron(self.I, self.WV @ self.WV.T)
        inner = self.c / K * self.by_query.T @ self.Z1.T @ values @ self.Z1
        mixed = self.c / K**0.5 * kron(self.M1.T, self.WV.T) @ self.Z1
        return {
            "value, value": self.c * kron(self.M1.T @ self.M1, eye(V).double()),
            "query, query": inner @ self.by_query,
            "query, key": inner @ self.by_key,
            "value, query": mixed @ self.by_query,
            "value, key": mixed @ self.by_key,
        }

    def functional(self) -> dict[str, Tensor]:
        """Theorem 3.2."""
        D = self.width
        identity = eye(D).double()
        weights = kron(kron(kron(self.I, self.WV.T), identity), self.WK.T)
        inner = self.c / K * self.contraction(D * K) @ weights @ self.Z2
        mixed = self.c / K**0.5 * self.contraction(D * V) @ kron(self.I, self.spread(V)) @ self.Z1
        return {
            "value, value": torch.zeros(D * V, D * V).double(),
            "query, query": inner @ self.by_query,
            "query, key": inner @ self.by_key + kron(self.hollow(), eye(K).double()),
            "value, query": mixed @ self.by_query,
            "value, key": mixed @ self.by_key,
        }

    def hollow(self) -> Tensor:
        """The factor of the term that query and key have as a product: ∂ℓ/∂(W_Q W_Kᵀ) / sqrt(K)."""
        identity = eye(self.width).double()
        along = self.contraction(self.width) @ kron(kron(self.I, self.WV.T), identity)
        return self.c / K**0.5 * along @ kron(self.Z1, identity) @ self.spread(self.width)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("part", ["outer", "functional"])
def test_printed_theorems_token_form_and_autodiff_agree(part: str, width: int) -> None:
    theorem = Theorem(width)
    arguments = {
        "x": theorem.X[None],
        "w_query": theorem.WQ[None],
        "w_key": theorem.WK[None],
        "w_value": theorem.WV[None],
        "target": theorem.Y[None],
    }
    hessian = attention_hessian(**arguments)
    autodiff = reference_hessian(arguments)[part]
    lengths = [width * K, width * K, width * V]
    places = dict(zip(hessian.groups, torch.arange(sum(lengths)).split(lengths), strict=True))
    for name, printed in getattr(theorem, part)().items():
        row, column = name.split(", ")
        token_form = hessian.block(row, column, part).dense()
        by_autodiff = autodiff[places[row]][:, places[column]]
        torch.testing.assert_close(printed, token_form, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(printed, by_autodiff, rtol=1e-12, atol=1e-14)
