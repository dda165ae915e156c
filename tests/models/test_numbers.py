"""Numbers of a configuration that no model has are refused by their key."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import hessblocks as hb

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 8}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", float("nan")),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -5.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0.0}),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", -1),
        ("sliding_window", "x"),
    ],
)
def test_a_number_that_no_model_has_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2)).save_pretrained(tmp_path)
    assert hb.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    name = "rope_theta" if isinstance(value, dict) else key
    with pytest.raises(hb.ArgumentError, match=f"its configuration has {name} = .*, expected a"):
        hb.load(tmp_path)
