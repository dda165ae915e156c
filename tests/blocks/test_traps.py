"""The traps of the block family: what a designer would fall into, and how it is met."""

import pytest
import torch

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Shaping
from hessblocks.blocks.weights import Dense, Identity, Reparametrised

SIZES = {"depth": 2, "width": 16, "heads": 4, "vocab_size": 11, "context": 8}
SHAPED = ["skipless", "v-skipinit", "sas", "sas-p", "sas-p-no-norm"]


@pytest.mark.parametrize("name", SHAPED)
def test_zero_queries_keep_keys_still_for_one_step_only(name: str) -> None:
    model, ids = hb.build(name, **SIZES), torch.randint(0, 11, (4, 8))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = []
    for _ in range(2):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        sizes.append([layer.attention.key.weight.grad.abs().sum() for layer in model.model.layers])
        optimiser.step()
    assert not any(sizes[0])
    assert all(sizes[1])


@pytest.mark.parametrize("name", SHAPED)
def test_zero_queries_under_a_norm_are_refused_with_the_way_out(name: str) -> None:
    block = hb.preset(name)
    norm = hb.preset("modern").attention.query_key_norm
    with pytest.raises(hb.ArgumentError, match=r"1/√eps.*query_norm=rms-norm with gain=0"):
        block.replace(attention=block.attention.replace(query_key_norm=norm))


@pytest.mark.parametrize("name", ["sas", "sas-p", "sas-p-no-norm"])
def test_grouped_queries_cannot_have_identity_values(name: str) -> None:
    with pytest.raises(hb.ArgumentError, match=r"key_value_heads.*value.*identity"):
        hb.build(name, **SIZES, key_value_heads=2)


@pytest.mark.parametrize("name", hb.PRESETS)
def test_presets_drop_values_and_the_mlp_skip_only_where_that_costs_nothing(name: str) -> None:
    """Identity values beside an attention skip, or no MLP skip in sequence, train far slower."""
    block = hb.preset(name)
    if isinstance(block.attention.value, Identity):
        assert not block.attention_branch.has_skip
    if not block.mlp_branch.has_skip:
        assert block.layout == "parallel"


@pytest.mark.parametrize("part", [Dense, Reparametrised])
def test_a_tied_projection_undoes_the_values(part: type[Dense] | type[Reparametrised]) -> None:
    attention = Attention(
        shaping=Shaping(),
        query=Dense(init="zeros"),
        value=part(init="orthogonal"),
        projection=part(init="tied-orthogonal"),
    )
    model = hb.build("skipless", **SIZES, attention=attention)
    for layer in model.model.layers:
        value, projection = layer.attention.value, layer.attention.projection
        assert torch.equal(projection.initial_weight, value.initial_weight.T)
        assert torch.allclose(projection(value(torch.eye(16))), torch.eye(16), atol=1e-5)


@pytest.mark.parametrize("part", [Dense, Reparametrised])
def test_a_tied_projection_is_loaded_as_it_was_trained(
    part: type[Dense] | type[Reparametrised], tmp_path: object
) -> None:
    attention = Attention(value=part(init="orthogonal"), projection=part(init="tied-orthogonal"))
    model = hb.build("pre-ln", **SIZES, attention=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    ids = torch.randint(0, 11, (2, 8))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
