"""Causal language models made of blocks, as Hugging Face models."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import hessblocks as hb
from hessblocks.blocks.weights import Reparametrised
from tests.models.cases import SIZES, ids, perturbed, presets


@presets
def test_a_saved_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    model = perturbed(name)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = ids(2, 9)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert AutoConfig.from_pretrained(tmp_path).preset == name


def test_the_fixed_initial_weight_is_saved_and_moved(tmp_path: Path) -> None:
    attention = hb.preset("skipless", width=16, heads=4).attention.replace(
        value=Reparametrised(trainable_gains=True)
    )
    model = hb.build("skipless", **SIZES, attention=attention).eval()
    model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = ids(2, 9)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert model.double().model.layers[1].attention.value.initial.dtype == torch.float64


@presets
def test_double_precision_agrees(name: str) -> None:
    model = perturbed(name)
    tokens = ids(2, 9)
    single = model(tokens).logits
    double = model.double()(tokens).logits
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, atol=1e-3)


@presets
@pytest.mark.parametrize("position", ["rotary", "learned"])
def test_left_padding_changes_no_logits(name: str, position: str) -> None:
    """Rotations see distances alone; learned positions would show a shift."""
    model = perturbed(name, position=position)
    tokens = ids(1, 6)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    assert torch.allclose(
        model(padded, attention_mask=mask).logits[:, 3:], model(tokens).logits, atol=1e-5
    )


@presets
def test_eager_and_fused_attention_agree(name: str) -> None:
    model = perturbed(name)
    tokens, mask = ids(2, 8), torch.tensor([[1] * 8, [0, 0] + [1] * 6])
    fused = model(tokens, attention_mask=mask).logits
    model.set_attn_implementation("eager")
    eager = model(tokens, attention_mask=mask).logits
    assert torch.allclose(fused[mask.bool()], eager[mask.bool()], atol=1e-5)


def test_the_loss_is_the_mean_over_valid_tokens() -> None:
    model = perturbed("sas-p")
    tokens = ids(2, 8)
    labels = tokens.clone()
    labels[0, :5] = -100
    logits = model(tokens).logits[:, :-1].log_softmax(-1)
    valid = labels[:, 1:] != -100
    picked = logits.gather(-1, tokens[:, 1:, None])[..., 0][valid]
    assert model(tokens, labels=labels).loss.item() == pytest.approx(
        -picked.mean().item(), rel=1e-5
    )


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    model = perturbed("pre-ln", position="learned")
    with pytest.raises(
        hb.ArgumentError, match="25 tokens are longer than the model's context of 24"
    ):
        model(ids(1, 25))


def test_hidden_states_are_those_of_transformers_models() -> None:
    model = perturbed("sas")
    tokens = ids(2, 9)
    out = model(tokens, output_hidden_states=True)
    assert len(out.hidden_states) == SIZES["depth"] + 1
    assert torch.equal(model.lm_head(out.hidden_states[-1]), out.logits)
    block = model.model.layers[0]
    seen: list[torch.Tensor] = []
    handle = block.register_forward_hook(
        lambda module, inputs, output: seen.extend((inputs[0], output))
    )
    model.config.output_hidden_states = True
    again = model(tokens).hidden_states
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(again[:2], seen, strict=True))
    assert model(tokens, output_hidden_states=False).hidden_states is None


def test_a_tuple_where_one_is_asked_for() -> None:
    model = perturbed("sas")
    tokens = ids(2, 9)
    loss, logits, *_ = model(tokens, labels=tokens, return_dict=False)
    out = model(tokens, labels=tokens)
    assert torch.equal(loss, out.loss)
    assert torch.equal(logits, out.logits)
    model.config.return_dict = False
    assert isinstance(model(tokens), tuple)


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"labls": 1}, "'labls' is unknown; did you mean 'labels'"),
        ({"token_type_ids": 1}, "token_type_ids: the models have no segment embeddings"),
        ({"output_attentions": True}, "output_attentions: .*layer.attention.matrix"),
    ],
)
def test_what_would_be_ignored_is_refused(
    task: str, keywords: dict[str, object], words: str
) -> None:
    model = perturbed("sas", task=task)
    with pytest.raises(hb.ArgumentError, match=words):
        model(ids(2, 9), **keywords)
    model(ids(2, 9), output_attentions=None, output_hidden_states=None, use_cache=False)


def test_logits_to_keep_keeps_the_last() -> None:
    model = perturbed("sas")
    tokens = ids(2, 9)
    assert torch.allclose(
        model(tokens, logits_to_keep=2).logits, model(tokens).logits[:, -2:], atol=1e-6
    )
