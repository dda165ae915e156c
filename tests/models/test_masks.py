"""Masks that a user gives: what does not fit, or would be read as something else, is refused in a
sentence."""

import pytest
import torch
from transformers import StaticCache

import hessblocks as hb
from tests.models.cases import ids, perturbed

SHAPES = [(8,), (2, 6), (2, 9), (1, 8), (2, 8, 8), (2, 1, 8, 9), (3, 1, 8, 8), (2, 3, 8, 8)]


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_a_mask_that_does_not_fit_names_its_shape(shape: tuple[int, ...], task: str) -> None:
    model = perturbed("pre-ln", task=task)
    with pytest.raises(hb.ArgumentError) as caught:
        model(ids(2, 8), attention_mask=torch.ones(shape, dtype=torch.bool))
    assert str(caught.value) == (
        "attention_mask: expected (2, 8) with 0 at padding, or your own mask, (2, 1, 8, 8), "
        f"got {shape}"
    )


@pytest.mark.parametrize("name", ["pre-ln", "sas-p"])
@pytest.mark.parametrize("static", [False, True])
def test_with_a_cache_the_mask_is_of_all_tokens(name: str, static: bool) -> None:
    model, tokens = perturbed(name), ids(2, 8)
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    expected = model(tokens, attention_mask=mask).logits

    def rest(*masks: torch.Tensor) -> torch.Tensor:
        cache = StaticCache(model.config, max_cache_len=12) if static else None
        first = model(tokens[:, :5], attention_mask=masks[0], past_key_values=cache, use_cache=True)
        kept = {"past_key_values": first.past_key_values}
        found: torch.Tensor = model(tokens[:, 5:], attention_mask=masks[1], **kept).logits
        return found

    assert torch.allclose(rest(mask[:, :5], mask), expected[:, 5:], atol=1e-4)
    if static:
        longer = torch.nn.functional.pad(mask, (0, 4))
        assert torch.allclose(rest(longer, longer), expected[:, 5:], atol=1e-4)
    with pytest.raises(
        hb.ArgumentError,
        match=r"expected \(2, 8\), the tokens in past_key_values among them.*got \(2, 3\)",
    ):
        rest(mask[:, :5], mask[:, 5:])


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (1, 1, 8, 8), (2, 4, 8, 8), (1, 1, 1, 8)], ids=str)
def test_masks_of_four_axes_that_fit_are_taken(shape: tuple[int, ...]) -> None:
    model, tokens = perturbed("sas", task="masked-lm"), ids(2, 8)
    found = model(tokens, attention_mask=torch.ones(shape, dtype=torch.bool)).logits
    assert torch.allclose(found, model(tokens).logits, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("slots", [[], ["attention.scores=linear"]], ids=["softmax", "linear"])
def test_ones_and_zeros_of_four_axes_are_not_misread(implementation: str, slots: list[str]) -> None:
    model, tokens = perturbed("pre-ln", slots=slots), ids(2, 8)
    model.set_attn_implementation(implementation)
    seen = torch.ones(2, 1, 8, 8).tril()
    for mask, got in ((seen.long(), "torch.int64"), (seen, "1"), (seen.half(), "1")):
        with pytest.raises(hb.ArgumentError, match=rf"four axes, got {got}; .* mask\.bool\(\)"):
            model(tokens, attention_mask=mask)
    expected = model(tokens).logits
    for mask in (seen.bool(), torch.zeros_like(seen).masked_fill(seen == 0, -torch.inf)):
        assert torch.allclose(model(tokens, attention_mask=mask).logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    "values", [[0, 1, 1, 2, 2, 3], [0, 0.5, 0.25, 1, 1, 1]], ids=["whole", "shares"]
)
def test_a_classifier_weighs_alike_all_that_is_not_padding(values: list[float]) -> None:
    model, tokens, mask = (
        perturbed("sas", task="classification"),
        ids(2, 6),
        torch.tensor([values] * 2),
    )
    found = model(tokens, attention_mask=mask).logits
    assert torch.equal(found, model(tokens, attention_mask=mask.bool()).logits)
