"""Values of a configuration that no model has are refused by their key."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks.models.saved import _check_values

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 8}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", float("nan")),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -5.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0.0}),
        ("rope_parameters", {"rope_type": "default", "original_max_position_embeddings": -1}),
        ("rope_scaling", {"original_max_position_embeddings": 0}),
        ("global_rope_theta", -1.0),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", -1),
        *(("sliding_window", value) for value in ("x", 0, -1, 3.5, float("inf"), [2])),
        *(("output_hidden_states", value) for value in ("x", "no", 3.5, ["x"])),
        ("num_experts_per_tok", 0),
        ("query_pre_attn_scalar", -1),
        ("final_logit_softcapping", float("inf")),
        ("n_head", -1),
    ],
)
def test_a_value_that_no_model_has_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2)).save_pretrained(tmp_path)
    assert hb.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    name = [*value][-1] if isinstance(value, dict) else key
    with pytest.raises(
        hb.ArgumentError, match=f"its configuration has {name} = .*, expected (a|true)"
    ):
        hb.load(tmp_path)


@pytest.mark.parametrize(
    "kind", ["gemma2", "gpt2", "gpt_oss", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3_moe"]
)
def test_the_defaults_of_a_family_fit(kind: str) -> None:
    _check_values("model", CONFIG_MAPPING[kind]().to_dict())


@pytest.mark.parametrize("layers", [0, 1])
def test_weights_of_layers_that_the_configuration_lacks_are_refused(
    layers: int, tmp_path: Path
) -> None:
    sizes = {**SIZES, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with pytest.raises(hb.RunError, match="holds weights of more layers than its configuration"):
        hb.load(tmp_path)
