"""A real network and loss behind the attention: all of it enters token by token."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import PARTS
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.outer import TokenCurvature
from tests.theory.autodiff import attention_output
from tests.theory.cases import Case, arguments

CASE = Case(
    name="two heads, causal, shaped",
    heads=2,
    width=4,
    value=2,
    out=4,
    gains=True,
    mask="causal",
    loss="matrix",
)
GROUPS = ("query", "key", "value", "projection", "alpha", "beta", "gamma")


@dataclass
class Behind:
    """A residual tanh network and cross-entropy over three classes, mean over tokens."""

    def __post_init__(self) -> None:
        torch.manual_seed(2)
        self.made = arguments(CASE)
        self.hidden = torch.randn(4, 5).double()
        self.head = torch.randn(5, 3).double()
        self.labels = torch.randint(3, (8,))
        weights = [self.made[f"w_{name}"] for name in GROUPS[:4]] + list(self.made["gains"])
        self.weights = dict(zip(GROUPS, weights, strict=True))
        self.theta = torch.cat([weight.flatten() for weight in weights])

    def output(self, theta: Tensor) -> Tensor:
        """F of every token, (8, 4)."""
        pieces = theta.split([weight.numel() for weight in self.weights.values()])
        shaped = [
            piece.view_as(weight)
            for piece, weight in zip(pieces, self.weights.values(), strict=True)
        ]
        return attention_output(self.made, dict(zip(GROUPS, shaped, strict=True))).flatten(0, 1)

    def logits(self, out: Tensor) -> Tensor:
        return torch.tanh((self.made["x"].flatten(0, 1) + out) @ self.hidden) @ self.head

    def loss(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.labels)


def token_hessians(of: object, at: Tensor) -> Tensor:
    """The diagonal blocks, one a token, of a Hessian that has no others."""
    full = torch.func.hessian(of)(at)
    return torch.stack([full[n, :, n] for n in range(len(at))])


def test_any_network_behind_enters_through_gradient_and_curvature() -> None:
    behind = Behind()
    at = behind.output(behind.theta)
    through = lambda out: behind.loss(behind.logits(out))  # noqa: E731
    told = {
        "gradient": torch.func.grad(through)(at).view(2, 4, 4),
        "curvature": token_hessians(through, at).view(2, 4, 4, 4),
    }
    found = attention_hessian(**behind.made | told).dense("full")
    expected = torch.func.hessian(lambda theta: through(behind.output(theta)))(behind.theta)
    assert (found - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("part", PARTS)
def test_the_split_at_the_logits(part: str) -> None:
    """H_o is Gauss-Newton in the logits; what the network bends counts with H_f."""
    behind = Behind()
    at = behind.output(behind.theta)
    logits = behind.logits(at)
    jacobian = torch.stack(
        [torch.func.jacrev(behind.logits)(at)[n, :, n] for n in range(8)]
    )  # (8, 3, 4)
    slope = torch.func.grad(behind.loss)(logits)
    p = logits.softmax(-1)
    root = (torch.eye(3) - p[:, :, None]) * p.sqrt()[:, None, :]  # root rootᵀ = diag p - p pᵀ
    factor = root.mT @ jacobian / 8**0.5
    found = AttentionHessian(
        attention_hessian(**behind.made).layer,
        gradient=torch.einsum("nc,nco->no", slope, jacobian).view(2, 4, 4),
        curvature=TokenCurvature(factor=factor),
        functional_curvature=TokenCurvature(
            matrix=token_hessians(lambda out: (slope * behind.logits(out)).sum(), at)
        ),
    )

    def to_logits(theta: Tensor) -> Tensor:
        return behind.logits(behind.output(theta))

    whole = torch.func.jacrev(to_logits)(behind.theta).flatten(0, 1)
    middle = torch.func.hessian(behind.loss)(logits).view(24, 24)
    expected = {
        "outer": whole.T @ middle @ whole,
        "functional": torch.func.hessian(lambda t: (slope * to_logits(t)).sum())(behind.theta),
        "full": torch.func.hessian(lambda t: behind.loss(to_logits(t)))(behind.theta),
    }[part]
    assert (found.dense(part) - expected).norm() <= 1e-12 * expected.norm()
    assert found.whole(part).positive_semidefinite == (part == "outer")
    norm = found.whole(part).frobenius_norm()
    assert norm == pytest.approx(float(expected.norm()), rel=1e-12)
