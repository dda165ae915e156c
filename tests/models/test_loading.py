"""Files that cannot be used are refused in one sentence; nothing is drawn anew in silence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import hessblocks as hb
from tests.models.cases import SIZES, ids, perturbed


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    perturbed("sas", position="learned").save_pretrained(tmp_path)
    return tmp_path


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda weights: b"",
    "cut in the header": lambda weights: weights[:100],
    "cut in half": lambda weights: weights[: len(weights) // 2],
    "last byte missing": lambda weights: weights[:-1],
    "header overwritten": lambda weights: b"\xff" * 8 + weights[8:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_weights_are_named(saved: Path, damage: Callable[[bytes], bytes]) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(hb.RunError, match="damaged or cut off") as caught:
        AutoModelForCausalLM.from_pretrained(saved)
    assert str(saved) in str(caught.value)


OTHER: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another preset": ({"preset": "pre-ln"}, ["another block", "attention.projection.weight"]),
    "a deeper model": ({"depth": 3}, ["another block", "layers.2."]),
    "another vocabulary": ({"vocab_size": 31}, ["vocabulary", "(29, 16)", "(31, 16)"]),
    "another width": ({"width": 32}, ["sizes", "(32"]),
    "another context": ({"context": 48}, ["sizes", "position_embedding", "(24, 16)", "(48, 16)"]),
}


@pytest.mark.parametrize(("fields", "words"), OTHER.values(), ids=OTHER)
def test_weights_of_another_model_are_refused(
    saved: Path, fields: dict[str, Any], words: list[str]
) -> None:
    sizes = SIZES | fields
    config = hb.build(sizes.pop("preset", "sas"), position="learned", **sizes).config
    with pytest.raises(hb.RunError) as caught:
        AutoModelForCausalLM.from_pretrained(saved, config=config)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_may_differ_where_that_is_asked_for(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved, vocab_size=31, ignore_mismatched_sizes=True)
    assert model.lm_head.weight.shape == (31, 16)


def test_a_new_head_is_announced(saved: Path) -> None:
    with pytest.warns(UserWarning, match="lm_head.weight is new"):
        AutoModelForCausalLM.from_pretrained(saved, tie_word_embeddings=False)


def test_what_was_loaded_can_be_asked_for(saved: Path) -> None:
    _, found = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not found["missing_keys"]


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "classification"])
def test_tokens_outside_the_vocabulary_are_refused(task: str) -> None:
    model = hb.build("sas", task=task, **SIZES)
    with pytest.raises(hb.ArgumentError, match="outside the model's vocabulary of 29"):
        model(ids(2, 5) + 29)


def test_positions_outside_the_context_are_refused() -> None:
    model = hb.build("pre-ln", position="learned", **SIZES)
    context = model.config.context
    with pytest.raises(hb.ArgumentError, match=f"position_ids: .* context of {context}"):
        model(ids(2, 5), position_ids=torch.arange(5)[None] + context - 4)


def test_what_is_not_a_choice_between_classes_is_refused() -> None:
    one = hb.build("sas", task="classification", classes=1, **SIZES).config
    one.problem_type = "multi_label_classification"
    with pytest.raises(
        hb.ArgumentError, match="problem_type: expected regression with num_labels=1"
    ):
        type(hb.build("sas", task="classification", **SIZES))(one)
    model = hb.build("sas", task="classification", classes=3, **SIZES)
    config = type(model.config).from_dict(model.config.to_dict() | {"problem_type": "regression"})
    with pytest.raises(hb.ArgumentError, match="problem_type: expected single_label"):
        type(model)(config)
    with pytest.raises(hb.ArgumentError, match=r"attention_mask: expected .sequences, tokens"):
        model(ids(1, 5), attention_mask=torch.ones(1, 1, 5, 5).bool())


def test_a_model_in_half_precision_is_saved_and_loaded_as_such(tmp_path: Path) -> None:
    model = perturbed("sas-p").bfloat16()
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = ids(2, 9)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", ["a b", "", "x:y", "preset:sas", "a..b", "x" * 300])
def test_what_can_name_no_model_is_refused(name: str) -> None:
    with pytest.raises(hb.ArgumentError, match=r"MODEL: .+ is not a folder; give one that"):
        hb.load(name)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=29)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


LEFT_OVER: dict[str, tuple[dict[str, Any], str]] = {
    "fewer layers": (
        {"num_hidden_layers": 1},
        r"holds weights of more layers .*\(9 tensors, the first model\.layers\.1\.input_layernorm",
    ),
    "another width": ({"hidden_size": 16}, r"lm_head\.weight is \(29, 8\) in the file, \(29, 16\)"),
    "no kind of layer": ({"layer_types": ["a", "b"]}, r"validate_layer_type': .*`layer_types`"),
}


@pytest.mark.parametrize(("edited", "message"), LEFT_OVER.values(), ids=LEFT_OVER)
def test_weights_that_do_not_fit_a_configuration_are_named(
    llama: Path, edited: dict[str, Any], message: str
) -> None:
    path = llama / "config.json"
    config = json.loads(path.read_text()) | {"layer_types": None} | edited
    path.write_text(json.dumps(config))
    with pytest.raises(hb.HessblocksError, match=message) as caught:
        hb.load(llama)
    assert "\n" not in str(caught.value)


def test_weights_that_a_model_does_not_use_are_reported_once(llama: Path) -> None:
    path = llama / "model.safetensors"
    names = "model.layers.1.mlp.experts.0.up.bias", "model.layers.0.self_attn.q_proj.bias"
    spare = {name: torch.zeros(2) for name in names}
    save_file(load_file(path) | spare, path, metadata={"format": "pt"})
    with pytest.warns(
        UserWarning, match=r"2 tensors that .* not use, the first .+0\.self_"
    ) as said:
        hb.load(llama)
    assert len(said) == 1


def saved_llama(folder: Path, change: Any = None, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 20}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, **sizes))
    model.save_pretrained(folder)
    place = folder / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **config}))
    if change:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return model


NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("method", [None, "no-such-method"])
def test_weights_that_are_not_floats_are_refused_by_name(dtype, method, tmp_path):
    def change(tensors):
        tensors[NAME] = (tensors[NAME] * 40).to(dtype)

    more = {"quantization_config": {"quant_method": method}} if method else {}
    saved_llama(tmp_path, change, **more)
    with pytest.raises(hb.HessblocksError, match=r"up_proj\.weight|no-such-method"):
        hb.load(tmp_path)


def test_mxfp4_is_read_as_its_standard_says(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    config = GptOssConfig(**sizes, **heads, vocab_size=20, num_experts_per_tok=1, pad_token_id=0)
    GptOssForCausalLM(config).save_pretrained(tmp_path)
    tensors, expected = load_file(tmp_path / "model.safetensors"), {}
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])
    for name in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{name}"
        experts, inputs, outputs = tensors.pop(name).shape
        packed = torch.randint(256, (experts, outputs, inputs // 32, 16))
        exponents = torch.randint(120, 130, packed.shape[:3])
        tensors |= {f"{name}_blocks": packed.byte(), f"{name}_scales": exponents.byte()}
        values = torch.stack([numbers[packed % 16], numbers[packed // 16]], -1).flatten(3)
        scaled = values * 2.0 ** (exponents[..., None] - 127)
        expected[name] = scaled.flatten(2).transpose(1, 2)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    place = tmp_path / "config.json"
    how = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    place.write_text(json.dumps(json.loads(place.read_text()) | {"quantization_config": how}))
    model, _ = hb.load(tmp_path)
    assert all(torch.equal(model.get_parameter(name), expected[name]) for name in expected)
    assert "2 of 9 matrices were stored in 4 bits (MXFP4)" in hb.models.stored_words(model.config)


def test_masks_of_integers_that_a_model_does_not_use_are_not_a_reason_to_refuse(tmp_path):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["model.layers.0.self_attn.masked_bias"] = torch.ones(1, dtype=torch.bool)

    saved_llama(tmp_path, change)
    with pytest.warns(UserWarning, match="does not use"):
        hb.load(tmp_path)


def test_half_precision_is_read_as_before(tmp_path):
    saved_llama(tmp_path, lambda tensors: tensors.update({NAME: tensors[NAME].bfloat16()}))
    assert hb.load(tmp_path)[0].get_parameter(NAME).dtype == torch.float32


def test_a_pickle_that_an_index_names_is_never_opened(tmp_path, monkeypatch):
    model = saved_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), "pytorch_model.bin")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(hb.RunError, match="expected safetensors files"):
        hb.load(tmp_path)


@pytest.mark.parametrize("case", ["twice", "beside"])
def test_a_folder_with_two_of_a_weight_is_refused(case: str, tmp_path: Path) -> None:
    saved_llama(tmp_path).save_pretrained(tmp_path, max_shard_size="2KB")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    assert hb.load(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    if case == "twice":
        weights = load_file(first) | load_file(second)
        save_file(weights, second, metadata={"format": "pt"})
    else:
        shutil.copy(first, tmp_path / "model.safetensors")
    said = "in another file too" if case == "twice" else "names other files than model.safetensors"
    with pytest.raises(hb.RunError, match=said):
        hb.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": 3}, "architectures"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"hidden_size": -16}, "hidden_size"),
        ({"num_attention_heads": -2}, "num_attention_heads"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"transformers_weights": "pytorch_model.bin"}, "transformers_weights"),
    ],
)
def test_wrong_values_in_a_configuration_are_a_sentence(config, said, tmp_path):
    saved_llama(tmp_path, **config)
    with pytest.raises(hb.HessblocksError, match=said):
        hb.load(tmp_path)


def test_outputs_are_named_whatever_the_configuration_says(tmp_path):
    model = saved_llama(tmp_path, return_dict=False)
    ids = torch.arange(8)[None]
    torch.testing.assert_close(hb.load(tmp_path)[0](ids).logits, model(ids).logits)


def test_code_beside_a_known_type_is_reported(tmp_path):
    saved_llama(tmp_path, auto_map={"AutoModelForCausalLM": "own.Model"})
    with pytest.warns(UserWarning, match="auto_map"):
        hb.load(tmp_path)
