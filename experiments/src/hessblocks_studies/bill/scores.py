"""Score roundings as other tools do, with gradients from one text.

Letters: W weight, Δ its change, X inputs of its layer, G gradient of the loss with respect to its
outputs, one row per token; w entries of W, b bits.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hessblocks.bill import Change

PEERS = {
    "weight error": "‖Δ‖²",
    "magnitude": "‖W‖² 4^−b",
    "activation error": "‖XΔᵀ‖², the objective of GPTQ",
    "trace": "tr(H_o) ‖Δ‖² / entries, of HAWQ with H_o in place of H",
    "squared output gradients": "Σ G² (XΔᵀ)², of AutoQuantize",
    "empirical Fisher": "Σ (GᵀX)² Δ², a gradient for each sequence",
}
"""Score → its formula and source."""
TOGETHER = 4
"""Sequences per pass."""
TRACE = "trace"
"""Suffix of a weight's name: change by 1 of every entry, whose diagonal price is half the trace."""


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Map weight names to the layers that multiply by them, without the output head."""
    read_out = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not read_out
    }


def trace_changes(places: Sequence[str]) -> dict[str, dict[str, object]]:
    """Make changes whose prices are half the trace of H_o for each weight."""
    return {f"{place}, {TRACE}": {place: _one_more} for place in places}


def _one_more(old: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return old + 1


def peers(
    model: PreTrainedModel,
    tokens: Int[Tensor, "sequences tokens"],
    changes: Sequence[Change],
    traces: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Score roundings of the weights of linear layers.

    Args:
        model: a causal language model.
        tokens: text for the gradients.
        changes: roundings.
        traces: trace of H_o for each weight.

    Returns:
        {change: {peer: score}}; scores of one peer compare changes, but peers have different units.
    """
    weights = dict(model.named_parameters())
    found = {change.name: dict.fromkeys(PEERS, 0.0) for change in changes}
    places = list(dict.fromkeys(change.place for change in changes))
    layers = {place: linear_layers(model)[place] for place in places}
    for change, delta in _deltas(changes, weights):
        error, size = float(delta.square().sum()), float(weights[change.place].square().sum())
        found[change.name] |= {
            "weight error": error,
            "magnitude": size * 4.0 ** -(change.bits or 0),
            "trace": traces[change.place] * error / delta.numel(),
        }
    for some in tokens.split(TOGETHER):
        seen = _inputs_and_gradients(model, layers, some)
        fishers = {
            place: torch.einsum("rto,rti->roi", g, x).square_().sum(0)
            for place, (x, g) in seen.items()
        }
        for change, delta in _deltas(changes, weights):
            (x, g), place = seen[change.place], change.place
            turned = delta if isinstance(layers[place], Conv1D) else delta.T
            moved = x @ turned
            own, fisher = found[change.name], fishers[place]
            own["activation error"] += float(moved.square().sum())
            own["squared output gradients"] += float((moved * g).square_().sum())
            own["empirical Fisher"] += float((fisher.T * turned.square()).sum())
    return found


def _deltas(
    changes: Sequence[Change], weights: Mapping[str, Tensor]
) -> Iterator[tuple[Change, Float[Tensor, "..."]]]:
    """Make the changes one at a time."""
    with torch.no_grad():
        for change in changes:
            ((name, new),) = change.made(weights)
            yield change, new - weights[name]


def _inputs_and_gradients(
    model: PreTrainedModel, layers: Mapping[str, nn.Module], tokens: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute X and G of layers; the loss is the sum over tokens, with the text as labels.

    Returns:
        Weight → tensors (sequences, tokens, inputs) and (sequences, tokens, outputs).
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for name, layer in layers.items():

        def kept(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, of: str = name) -> None:
            seen[of] = inputs[0].detach(), output

        handles.append(layer.register_forward_hook(kept))
    try:
        logits = model(input_ids=tokens, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    gradients = torch.autograd.grad(loss, [output for _, output in seen.values()])
    return {name: (x, g) for (name, (x, _)), g in zip(seen.items(), gradients, strict=True)}
