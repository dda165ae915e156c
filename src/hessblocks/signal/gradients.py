"""Gradient norms of a layer's parameters, by the role that they play."""

import re
from collections import defaultdict

import torch
from jaxtyping import Float
from torch import Tensor, nn

_SELF = r"(attention(\.self)?|attn|self_attn|self_attention)\."
ROLES = {
    "query": _SELF + "(query|q_proj)",
    "key": _SELF + "(key|k_proj)",
    "value": _SELF + "(value|v_proj)",
    "query_key_value": _SELF + "(c_attn|query_key_value|qkv_proj)",
    "projection": _SELF + r"(projection|[co]_proj|out_proj|dense)|attention\.output\.dense",
    "gain": r"attention\.(gains|sink)|(attention|mlp)_branch|embedding_skip|value_residual",
    "mlp_in": r"mlp\.(input|gate|c_fc|gate_proj|up_proj|dense_h_to_4h)|intermediate\.dense|fc1",
    "mlp_out": r"mlp\.(output|c_proj|down_proj|dense_4h_to_h)|output\.dense|fc2",
    "norm": r".*(norm|LayerNorm)|ln_\d",
}
"""Role and the names of its modules within a layer, of this library and of transformers."""


def gradient_norms(layers: list[nn.Module], loss: Float[Tensor, ""]) -> list[dict[str, float]]:
    """Compute the Euclidean norm of the loss gradient of each role, layer by layer.

    Modules with other names than those of `ROLES` have the name as their role.

    Args:
        layers: modules whose parameters the loss depends on.
        loss: a scalar with a graph; its gradients are not added to `.grad`.

    Returns:
        By layer, a norm for each role.
    """
    named = [
        (index, name, parameter)
        for index, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad
    ]
    parameters = [parameter for _, _, parameter in named]
    if not parameters:
        return [{} for _ in layers]
    # unused: a layer may have parameters that never reach the loss
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    squares: list[dict[str, float]] = [defaultdict(float) for _ in layers]
    for (index, name, _), gradient in zip(named, gradients, strict=True):
        size = 0.0 if gradient is None else float(gradient.double().square().sum())
        squares[index][_role(name)] += size
    return [{role: square**0.5 for role, square in found.items()} for found in squares]


def _role(parameter: str) -> str:
    module = parameter.rpartition(".")[0]
    return next((role for role, names in ROLES.items() if re.fullmatch(names, module)), module)
