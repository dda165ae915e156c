"""Losses that a model adds to that of its logits are named; decoders read their labels one place
further on."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import hessblocks as hb
from hessblocks.curvature import AuxiliaryLossWarning
from hessblocks.curvature.products.calling import _shifted
from hessblocks.errors import ArgumentError

IDS = torch.arange(12).view(2, 6) % 7


def mixtral(**given: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 7}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
    return MixtralForCausalLM(MixtralConfig(**sizes, **heads, **given)).eval()


class Balanced(nn.Module):
    """Of one's own, with a second loss beside its logits."""

    def __init__(self, given: float | None) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 7)
        self.given = given

    def forward(self, input_ids: Tensor) -> dict[str, Any]:
        return {"logits": self.table(input_ids), "load_loss": self.given}


MODELS = {
    "router": (lambda: mixtral(output_router_logits=True), "router_aux_loss_coef"),
    "router without weight": (
        lambda: mixtral(output_router_logits=True, router_aux_loss_coef=0.0),
        "",
    ),
    "router that is not asked for": (mixtral, ""),
    "of one's own": (lambda: Balanced(1.0), "load_loss"),
    "of one's own, none": (lambda: Balanced(None), ""),
}


@pytest.mark.parametrize(("make", "said"), MODELS.values(), ids=MODELS)
def test_a_loss_that_is_left_out_is_named_once(make: Any, said: str) -> None:
    problem = hb.Problem(make(), {"input_ids": IDS, "labels": IDS})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", AuxiliaryLossWarning)
        for _ in range(2):
            problem.value()
    found = [str(one.message) for one in seen if one.category is AuxiliaryLossWarning]
    assert len(found) == bool(said)
    assert all(f" adds {said} to its loss, which is left out" in one for one in found)


def test_a_callable_says_what_it_takes() -> None:
    def whole(outputs: Any, batch: Any) -> Tensor:
        return outputs["logits"].square().sum((-1, -2)) + outputs["load_loss"]

    with warnings.catch_warnings():
        warnings.simplefilter("error", AuxiliaryLossWarning)
        hb.Problem(Balanced(1.0), [{"input_ids": IDS, "labels": IDS}], loss=whole).value()


SPEECH = {"vocab_size": 31, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
SPEECH |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SPEECH |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_target_positions": 12}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def whisper(**given: Any) -> nn.Module:
    torch.manual_seed(0)
    audio = {"num_mel_bins": 4, "max_source_positions": 10}
    none: dict[str, Any] = {"suppress_tokens": None, "begin_suppress_tokens": None}
    config = WhisperConfig(**SPEECH, **audio, **none, **{**TOKENS, **given})
    return WhisperForConditionalGeneration(config).eval()


def speech_to_text() -> nn.Module:
    torch.manual_seed(0)
    audio = {"input_feat_per_channel": 4, "conv_channels": 8, "max_source_positions": 20}
    return Speech2TextForConditionalGeneration(
        Speech2TextConfig(**SPEECH, **audio, **TOKENS)
    ).eval()


@pytest.mark.parametrize("make", [whisper, speech_to_text])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_loss_of_an_encoder_decoder_of_speech_is_its_own(make: Any, ragged: bool) -> None:
    model = make().double()
    shape = (2, 4, 20) if make is whisper else (2, 20, 4)
    labels = torch.randint(3, 31, (2, 5), generator=torch.Generator().manual_seed(0))
    if ragged:
        labels[1, 3:] = -100
    batch = {"input_features": torch.randn(shape, dtype=torch.float64), "labels": labels}
    problem = hb.Problem(model, batch, loss="seq2seq")
    assert problem.value() == pytest.approx(float(model(**batch).loss.detach()), rel=1e-12)


@pytest.mark.parametrize("lacking", ["decoder_start_token_id", "pad_token_id"])
def test_a_decoder_whose_first_token_is_not_known_gets_none(lacking: str) -> None:
    known = {"is_encoder_decoder": True, "decoder_start_token_id": 1, "pad_token_id": 0}
    model = SimpleNamespace(config=SimpleNamespace(**known | {lacking: None}))
    assert _shifted(model, IDS) is None  # type: ignore[arg-type]


def test_a_model_that_is_not_an_encoder_decoder_is_refused() -> None:
    model = Balanced(None)
    model.config = SimpleNamespace(decoder_start_token_id=1, pad_token_id=0)  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="expects an encoder-decoder"):
        hb.Problem(model, {"input_ids": IDS, "labels": IDS}, loss="seq2seq").value()
