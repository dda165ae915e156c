"""Ten blocks against what the published code of He & Hofmann (2024) gives for the same weights.

The reference, in `tests/reference`, holds random weights under our names with the logits, the loss
and the query gradients of the last layer that the authors' code computes from them in float64.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hessblocks as hb
from hessblocks.blocks import (
    BlockConfig,
    Dense,
    LayerNorm,
    LearnedPosition,
    Reparametrised,
    RMSNorm,
)

REFERENCE = Path(__file__).parents[1] / "reference"
TENSORS, SETTINGS = REFERENCE / "authors_blocks.safetensors", REFERENCE / "authors_blocks.json"
BLOCKS = (
    "pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm", "v-skipinit", "op", "reparam-id",
    "reparam-orth", "reparam-normal",
)  # fmt: skip
REPARAMETRISED = {
    "reparam-id": "identity",
    "reparam-orth": "orthogonal",
    "reparam-normal": "normal",
}
BOUND = 1e-12


@pytest.fixture(scope="module")
def reference() -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads(SETTINGS.read_text(encoding="utf-8")), load_file(TENSORS)


def block_of(name: str, sizes: dict[str, int]) -> BlockConfig:
    """Our block, with the norms and biases that the authors' code has."""
    preset = "skipless" if name in REPARAMETRISED else name
    base = hb.preset(preset, position=LearnedPosition(), **sizes)
    biased = Dense(bias=True)
    attention = base.attention.replace(query=biased, key=biased)
    if name in REPARAMETRISED:
        weight = Reparametrised(init=REPARAMETRISED[name], trainable_gains=True)
        attention = attention.replace(value=weight, projection=weight)
    norm, exact = LayerNorm(eps=1e-5), RMSNorm()
    block = base.replace(attention=attention, final_norm=norm)
    if name == "op":
        block = block.replace(attention=attention.replace(query_key_norm=exact))
    if name in ("op", "sas-p-no-norm"):
        return block.replace(first_norm=norm)
    return block.replace(norm=exact)


def model_of(name: str, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    sizes = {"width": settings["width"], "heads": settings["heads"]}
    model = hb.build(
        block_of(name, sizes),
        depth=settings["depth"],
        vocab_size=settings["vocabulary"],
        context=64,
    ).double()
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.eps = 0.0
    own = {
        key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")
    }
    wanted = model.state_dict()
    assert set(wanted) <= set(own), set(wanted) - set(own)
    model.load_state_dict({key: own[key] for key in wanted})
    for place, value in settings["presets"][name]["branch_gains"].items():
        module, _, gain = f"model.{place}".rpartition(".")
        branch = model.get_submodule(module)
        if isinstance(getattr(branch, gain), float):
            setattr(branch, gain, value)
        else:
            assert getattr(branch, gain).item() == value
    for key in set(own) - set(wanted):
        module, _, attribute = key.rpartition(".")
        if attribute in ("initial_gain", "update_gain"):
            setattr(model.get_submodule(module), attribute, float(own[key]))
    return model


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_equals_the_published_code(
    name: str, reference: tuple[dict[str, Any], dict[str, Tensor]]
) -> None:
    settings, tensors = reference
    assert set(settings["presets"]) == set(BLOCKS)
    model = model_of(name, settings, tensors)
    found = model(input_ids=tensors["ids"], labels=tensors["ids"])
    query = model.model.layers[2].attention.query.weight
    (gradient,) = torch.autograd.grad(found.loss, query)
    for ours, what in (
        (found.logits, "logits"),
        (found.loss, "loss"),
        (gradient, "query_gradient_layer_2"),
    ):
        theirs = tensors[f"{name}/expected_{what}"]
        scale = max(1.0, float(theirs.abs().max()))
        assert float((ours - theirs).detach().abs().max()) <= BOUND * scale, what


def test_another_eps_is_seen(reference: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    settings, tensors = reference
    model = model_of("pre-ln", settings, tensors)
    model.model.layers[0].mlp_norm.eps = 1e-6
    logits = model(input_ids=tensors["ids"]).logits.detach()
    assert float((logits - tensors["pre-ln/expected_logits"]).abs().max()) > 1e3 * BOUND
