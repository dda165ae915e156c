# %% [markdown]
# # The Hessian of self-attention in closed form
#
# For theorists: every block of the Hessian of one attention layer, exactly, with the moments that
# explain its size, checked against automatic differentiation on this machine.

# %%
import torch

import hessblocks as hb
from hessblocks.theory import AttentionHessian

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, target = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
weights = {name: torch.randn(8, 8) / 8**0.5 for name in ("query", "key", "value")}


def hessian(x: torch.Tensor) -> AttentionHessian:
    """The closed form at `x`."""
    return hb.attention_hessian(x, *weights.values(), target=target)


# %% [markdown]
# ## Against automatic differentiation


# %%
def loss(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Mean squared error of softmax(X W_Q W_Kᵀ Xᵀ / √8) X W_V."""
    scores = (x @ query) @ (x @ key).mT / 8**0.5
    return (scores.softmax(-1) @ x @ value - target).square().mean()


by_autodiff = torch.func.hessian(loss, argnums=(0, 1, 2))(*weights.values())
h = hessian(x)
for row, name in enumerate(weights):
    ours = h.block(name, name).dense()
    theirs = by_autodiff[row][row].reshape(ours.shape)
    print(f"{name:6} block: largest difference {float((ours - theirs).abs().max()):.0e}")

# %% [markdown]
# ## How blocks grow with the data
#
# Theory, for small inputs: the value block grows as σ², the outer query block as σ⁶, the functional
# one as σ⁵ because its residual is that of a fixed target. Measured on inputs ten times apart.

# %%
small, large = hessian(0.001 * x).norms(), hessian(0.01 * x).norms()
for key in (
    ("value", "value", "outer"),
    ("query", "query", "outer"),
    ("query", "query", "functional"),
):
    power = float(torch.log10(torch.as_tensor(large[key] / small[key])))
    print(f"{' '.join(key[1:]):18} block grows as σ^{power:.2f}")

# %% [markdown]
# ## Why: moments
#
# The query and key blocks contain the covariance of the inputs under the attention rows. Identical
# tokens (rank collapse) have none, so those blocks vanish; the value block does not.

# %%
collapsed = hessian(x[:, :1].expand(-1, 6, -1))
print(
    "largest second moment of identical tokens:",
    f"{float(collapsed.moments.second.abs().max()):.0e}",
)
for name in ("query", "value"):
    print(
        f"{name:6} block of identical tokens: norm "
        f"{collapsed.block(name, name).frobenius_norm():.1e}"
    )

# %% [markdown]
# `tests/theory/test_cases.py` checks every block and part; `examples/block_dependence.py`
# measures all powers.
