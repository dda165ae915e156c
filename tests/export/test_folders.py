"""Folders of compressed-tensors and torchao, opened by transformers without hessblocks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import hessblocks as hb
from hessblocks import export
from hessblocks.errors import ArgumentError
from hessblocks.tensor_formats import as_rows

OPEN = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    logits = model(input_ids=torch.arange(16)[None]).logits
assert "hessblocks" not in sys.modules
torch.save(logits, sys.argv[2])
"""
FORMATS = {
    "compressed-tensors": [f"compressed-tensors:{bits}" for bits in (3, 4, 8)],
    "torchao": ["torchao:4", "torchao:8"],
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_folder_opens_in_a_process_without_hessblocks(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind.replace("-", "_"))
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64, tie_word_embeddings=True, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    layers = hb.change_each(model, *map(hb.in_format, FORMATS[kind]))
    table = hb.change_each(model, hb.in_format("bf16"))
    changes = {n: c for n, c in layers.items() if "embed" not in n}
    changes |= {n: c for n, c in table.items() if "embed" in n}
    problem = hb.Problem(model, {"input_ids": torch.randint(64, (8, 8))})
    bill = hb.price(problem, changes, 8)
    places = dict.fromkeys(price.place for price in bill.values())
    names = []
    for number, place in enumerate(places):
        own = [name for name in bill if bill[name].place == place]
        names.append(own[number % len(own)])
    chosen = bill.chosen(names)
    chosen.save(tmp_path / "out")
    command = [sys.executable, "-c", OPEN, str(tmp_path / "out"), str(tmp_path / "logits.pt")]
    subprocess.run(command, check=True, capture_output=True)
    with torch.no_grad():
        for name, (own, _) in chosen.formats.items():
            model.get_parameter(name).copy_(own.rounded(model.get_parameter(name)))
        expected = model(input_ids=torch.arange(16)[None]).logits
    assert torch.allclose(torch.load(tmp_path / "logits.pt"), expected, atol=1e-6)
    again, _ = hb.load(tmp_path / "out")  # as a MODEL it has plain weights, and derivatives
    for name, weight in again.named_parameters():
        assert type(weight) is torch.nn.Parameter
        torch.testing.assert_close(weight, model.get_parameter(name), atol=1e-6, rtol=1e-3)
    other = hb.Problem(again, {"input_ids": torch.randint(64, (8, 8))})
    assert hb.trace(hb.OuterProduct(other), probes=4).value > 0
    said = hb.models.stored_words(again.config)
    assert "of 15 matrices were stored in" in said
    assert "in 4 bits (int4)" in said
    stored = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 0 <= stored - chosen.bytes < 700 * sum(1 for _ in model.parameters())


def test_a_folder_that_rounds_activations_as_it_runs_is_no_model_here(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64,
    )  # fmt: skip
    model, name = LlamaForCausalLM(config), "model.layers.0.mlp.up_proj.weight"
    export.write_folder(tmp_path, model, None, {}, {name: 8}, "compressed-tensors")
    tensors, weight = load_file(tmp_path / "model.safetensors"), model.get_parameter(name)
    scale = weight.detach().abs().amax(1, keepdim=True) / 127
    tensors |= {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    place = tmp_path / "config.json"
    settings = json.loads(place.read_text())
    settings["quantization_config"]["format"] = "int-quantized"
    (group,) = settings["quantization_config"]["config_groups"].values()
    group["weights"] = {"num_bits": 8, "strategy": "channel"}
    group["input_activations"] = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    place.write_text(json.dumps(settings))
    with pytest.raises(hb.RunError, match="rounds activations as it runs"):
        hb.load(tmp_path)
    del group["input_activations"]  # then the format is another, and a tensor is damaged
    place.write_text(json.dumps(settings))
    with pytest.raises(hb.HessblocksError, match="MODEL"):
        hb.load(tmp_path)


def test_only_linear_modules_are_stored_in_fewer_bits(tmp_path: Path) -> None:
    """Others would be written, and not be read."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64,
    )  # fmt: skip
    model, ids = LlamaForCausalLM(config), torch.randint(64, (8, 8))
    chosen = hb.quantise(
        model, {"input_ids": ids}, [*FORMATS["compressed-tensors"], "bf16"], bits=9
    )
    hows = {price.place: price.how for price in chosen.choices}
    assert hows["model.embed_tokens.weight"] == "bf16"
    assert any(place.count(",") == 2 and how != "bf16" for place, how in hows.items())
    bits = {"model.embed_tokens.weight": 4}
    with pytest.raises(ArgumentError, match=r"'model.embed_tokens.weight' is none"):
        export.write_folder(tmp_path / "out", model, None, {}, bits, "compressed-tensors")
    assert not (tmp_path / "out").exists()


def test_stacked_matrices_keep_their_axes(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 8}
    model = MixtralForCausalLM(
        MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, num_local_experts=2)
    )
    shapes = {name: p.shape for name, p in model.named_parameters() if p.ndim > 1}
    assert any(len(shape) == 3 for shape in shapes.values())
    half = hb.formats()["bf16"]
    packed = {name: half.pack(as_rows(model.get_parameter(name)), None) for name in shapes}
    export.write_folder(tmp_path / "out", model, None, packed, {}, "compressed-tensors")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: stored[name].shape for name in shapes} == shapes
