"""List a model's trained gains: of shaped attention (α, β, γ), branches and weights."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from hessblocks.blocks import ReparametrisedLinear, ResidualSum, ShapedGains
from hessblocks.signal import layers_of

BRANCHES = {"attention_branch": "SA", "mlp_branch": "FF"}
WEIGHTS = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "projection": "P",
    "input": "in",
    "gate": "gate",
    "attention.gate": "G",
    "output": "out",
}
"""Role of a weight → its letter in the name of a gain."""


def gain_values(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield every trainable gain: layer, quantity, value (mean over heads), and `heads` if any.

    Quantities are alpha, beta, gamma (shaped attention), alpha_SA, beta_SA, alpha_FF, beta_FF
    (skips and branches), alpha_V, beta_V and so on (reparametrised weights).

    Args:
        model: model of this library.
    """
    for layer, quantity, gain in _trained(model):
        values = gain.detach().float()
        row = {"layer": layer, "quantity": quantity, "value": float(values.mean())}
        yield row | ({"heads": values.tolist()} if gain.ndim else {})


def has_gains(model: nn.Module) -> bool:
    """Tell whether the model has any trainable gain."""
    return any(True for _ in _trained(model))


def _trained(model: nn.Module) -> Iterator[tuple[int, str, Tensor]]:
    for layer, block in enumerate(layers_of(model)):
        for path, module in block.named_modules():
            for quantity, gain in _gains(path, module):
                if isinstance(gain, Tensor) and gain.requires_grad:
                    yield layer, quantity, gain


def _gains(path: str, module: nn.Module) -> Iterator[tuple[str, Tensor | float]]:
    name = path.rpartition(".")[2]
    if isinstance(module, ShapedGains):
        yield from (("alpha", module.alpha), ("beta", module.beta), ("gamma", module.gamma))
    elif isinstance(module, ResidualSum):
        letter = BRANCHES.get(name, name)
        yield from ((f"alpha_{letter}", module.skip), (f"beta_{letter}", module.gain))
    elif isinstance(module, ReparametrisedLinear):
        letter = WEIGHTS.get(path) or WEIGHTS.get(name, name)
        yield from (
            (f"alpha_{letter}", module.initial_gain),
            (f"beta_{letter}", module.update_gain),
        )
