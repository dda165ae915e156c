"""Each architecture of GGUF that transformers reads: the logits of the model written, or a refusal.

Optional tensors and keys are added one at a time; none may be dropped without a word.
"""

import json
import re
import struct
import time
from functools import partial

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

import hessblocks as hb
from hessblocks.models import stored_words
from hessblocks.progress import Progress
from hessblocks.report import write_curvature_report
from tests.breadth import everyday
from tests.models.gguf_files import interleaved

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KEYS = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5000.0,
    "rope.dimension_count": 8,
    "vocab_size": 48,
}
BASE = {"rope_theta": 5000.0, "rope_type": "default"}
HALF = {**BASE, "partial_rotary_factor": 0.5}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
GEMMA_KEYS = {"attention.key_length": 16, "rope.dimension_count": 16, "attention.sliding_window": 8}
NO_RMS = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
NO_ROPE = {"rope.freq_base": None, "rope.dimension_count": None}
MODELS = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5, "rope_parameters": BASE}, {}),
    "qwen2": ("Qwen2", {"rms_norm_eps": 1e-5, "rope_parameters": BASE}, {}),
    "qwen3": (
        "Qwen3",
        {"rms_norm_eps": 1e-5, "rope_parameters": BASE, "head_dim": 16},
        {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16},
    ),
    "phi3": (
        "Phi3",
        {"rms_norm_eps": 1e-5, "rope_parameters": HALF, "sliding_window": 8},
        {"rope.dimension_count": 4, "attention.sliding_window": 8},
    ),
    "stablelm": (
        "StableLm",
        {"layer_norm_eps": 1e-4, "rope_parameters": HALF},
        {**NO_RMS, "attention.layer_norm_epsilon": 1e-4, "rope.dimension_count": 4},
    ),
    "starcoder2": ("Starcoder2", {"norm_epsilon": 1e-5, "rope_parameters": BASE}, NO_RMS),
    "nemotron": (
        "Nemotron",
        {"norm_eps": 1e-4, "rope_parameters": HALF, "head_dim": 8},
        {**NO_RMS, "attention.layer_norm_epsilon": 1e-4, "rope.dimension_count": 4},
    ),
    "gemma2": (
        "Gemma2",
        {**GEMMA, "rms_norm_eps": 1e-5, "rope_parameters": BASE, "attn_logit_softcapping": 5.0},
        {**GEMMA_KEYS, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3",
        {**GEMMA, "rms_norm_eps": 1e-5, "num_hidden_layers": 6},
        {**GEMMA_KEYS, "block_count": 6, "rope.freq_base": 1e6},
    ),
    "bloom": (
        "Bloom",
        {"n_layer": 2, "n_head": 4},
        {**NO_RMS, **NO_ROPE, "feed_forward_length": 128, "attention.head_count_kv": 4},
    ),
    "falcon": (
        "Falcon",
        {"num_kv_heads": 1, "multi_query": True, "ffn_hidden_size": 48, "rope_parameters": BASE},
        {**NO_RMS, "attention.head_count_kv": 1},
    ),
    "gpt2": (
        "GPT2",
        {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48},
        {**NO_RMS, **NO_ROPE, "attention.head_count_kv": None},
    ),
    "lfm2": (
        "Lfm2",
        {"norm_eps": 1e-5, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False,
            "rope_parameters": BASE, "layer_types": ["conv", "full_attention"]},
        {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
    ),
    "mamba": (
        "Mamba",
        {"state_size": 4, "time_step_rank": 2, "intermediate_size": 64, "expand": 2},
        {
            **NO_ROPE, "feed_forward_length": 0, "attention.head_count": 0,
            "attention.head_count_kv": None, "ssm.conv_kernel": 4, "ssm.state_size": 4,
            "ssm.time_step_rank": 2, "ssm.inner_size": 64, "ssm.dt_b_c_rms": False,
        },
    ),
}  # fmt: skip
"""Architecture → name in transformers, sizes there, and keys in the file."""


def made(kind, **more):
    name, sizes, _ = MODELS[kind]
    torch.manual_seed(0)
    text = "Text" if kind == "gemma3" else ""
    scaled = more.pop("rope_parameters", None)
    config = getattr(transformers, f"{name}{text}Config")(**{**SIZES, **sizes, **more})
    config.rope_parameters = scaled or getattr(config, "rope_parameters", None)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "A_log" not in parameter_name:  # its start is far from 0
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def stored(kind, name, value, config):
    """The tensor as llama.cpp's conversion writes it."""
    heads, groups = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    value = value.clone()
    if kind == "llama" and (".attn_q." in name or ".attn_k." in name):
        count = heads if ".attn_q." in name else groups
        shape = value.shape
        return interleaved(value.reshape(shape[0], -1), count).reshape(shape)
    if kind in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return value + 1
    if kind == "gpt2" and value.ndim == 2 and name.startswith("blk."):
        return value.T
    if kind == "bloom" and "attn_qkv" in name:
        return value.view(heads, 3, -1, *value.shape[1:]).transpose(0, 1).reshape(value.shape)
    if name.endswith("ssm_a"):
        return -value.exp()
    if "conv1d.weight" in name or "shortconv.conv.weight" in name:
        return value.squeeze(1)
    return value


def write(path, kind, model, keys=(), tensors=(), type_=None):
    out, wanted = gguf.GGUFWriter(path, kind), {**KEYS, **MODELS[kind][2], **dict(keys)}
    for key, value in wanted.items():
        full = key if key.startswith(("split.", "general.")) else f"{kind}.{key}"
        if isinstance(value, bool):
            out.add_bool(full, value)
        elif isinstance(value, int):
            out.add_int32(full, value)
        elif isinstance(value, float):
            out.add_float32(full, value)
        elif isinstance(value, str):
            out.add_string(full, value)
        elif isinstance(value, list):
            out.add_array(full, value)
    out.add_token_list([f"t{n}" for n in range(48)])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_pad_token_id(0)
    state = model.state_dict()
    for name, theirs in get_gguf_hf_weights_map(model, TensorProcessor()).items():
        if theirs == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        value = stored(kind, name, state[theirs], model.config).contiguous().numpy()
        if type_ and value.ndim == 2 and value.shape[1] % 32 == 0:
            quantised = gguf.quantize(value, type_)
            out.add_tensor(name, quantised, raw_dtype=type_)
        else:
            out.add_tensor(name, value)
    for name, value in dict(tensors).items():
        out.add_tensor(name, np.ascontiguousarray(value))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


IDS = torch.arange(40).view(2, 20) * 7 % 45 + 3


def assert_same(path, model):
    with torch.no_grad():
        torch.testing.assert_close(
            hb.load(path)[0](IDS).logits, model(IDS).logits, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("kind", MODELS)
def test_each_architecture_gives_the_logits_of_the_model_written(kind, tmp_path):
    assert_same(write(tmp_path / "m.gguf", kind, made(kind)), made(kind))


TENSORS = [
    "blk.0.attn_q.bias",
    "blk.1.attn_output.bias",
    "blk.0.ffn_up.bias",
    "blk.7.attn_norm.weight",
    "blk.0.attn_sinks.weight",
    "rope_factors_long.weight",
    "unknown.weight",
    "output.bias",
]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_is_not_taken_is_refused_by_its_name(kind, name, tmp_path):
    tensor = {name: np.ones(32, dtype=np.float32)}
    with pytest.raises(hb.HessblocksError, match=name):
        hb.load(write(tmp_path / "m.gguf", kind, made(kind), tensors=tensor))


LEFT = {
    "logit_scale": 0.5,
    "attn_logit_softcapping": 7.0,
    "attention.scale": 0.3,
    "attention.clamp_kqv": 1.0,
    "attention.max_alibi_bias": 8.0,
    "attention.value_length": 4,
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": 2.0,
    "rope.dimension_count": 4,
    "expert_count": 4,
    "residual_scale": 0.2,
    "no_such_key": 1,
}


@pytest.mark.parametrize("key", LEFT)
def test_a_key_that_is_not_read_is_refused_by_its_name(key, tmp_path):
    with pytest.raises(hb.HessblocksError, match=key.replace(".", r"\.") + "|q_proj|attn_q"):
        hb.load(write(tmp_path / "m.gguf", "llama", made("llama"), {key: LEFT[key]}))


MORE = {
    **LEFT,
    "attention.layer_norm_epsilon": 0.3,
    "attention.layer_norm_rms_epsilon": 0.3,
    "attention.sliding_window": 5,
    "attention.key_length": 4,
    "attention.causal": False,
    "attention.group_norm_groups": 2,
    "attention.shared_kv_layers": 1,
    "attention.temperature_scale": 0.5,
    "final_logit_softcapping": 3.0,
    "rope.scaling.factor": 4.0,
    "rope.scale_linear": 4.0,
    "rope.freq_base_swa": 2e4,
    "rope.dimension_sections": [1, 1, 2],
    "expert_weights_scale": 2.0,
    "embedding_scale": 3.0,
    "ssm.inner_size": 12,
    "use_parallel_residual": True,
    "leading_dense_block_count": 1,
    "nextn_predict_layers": 1,
}
WITHOUT_EFFECT = {
    "tensor_data_layout": "Meta AI original pth",
    "pooling_type": 1,
    "rope.scaling.finetuned": True,
    "rope.scaling.original_context_length": 16,
}


def meant(kind, key):
    """Fields of a model that a key of `MORE` gives other values, where its family has them."""
    rope = MODELS[kind][1].get("rope_parameters", {})
    full = {**rope, "rope_theta": rope.get("rope_theta", 1e6)}
    local = {"rope_type": "default", "rope_theta": 1e4}
    if key in ("rope.scaling.factor", "rope.scale_linear"):
        full |= {"rope_type": "linear", "factor": 4.0}
    elif key == "rope.freq_base_swa":
        full, local = {**full, "rope_type": "default"}, {**local, "rope_theta": MORE[key]}
    else:
        return {key.rpartition(".")[2]: MORE[key]}
    nested = {"full_attention": full, "sliding_attention": local}
    return {"rope_parameters": nested if kind == "gemma3" else full}


def read_or_refused(folder, kind, name, written, read, *, keys=(), tensors=()):
    """Assert that a key or tensor is refused by its name, or gives one of two models' logits."""
    path = write(folder / "m.gguf", kind, written, dict(keys), dict(tensors))
    try:
        loaded = hb.load(path)[0]
    except hb.HessblocksError as error:
        return str(error)
    with torch.no_grad():
        found, expected = loaded(IDS).logits, read()(IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=f"{kind}, {name}")
    return ""


EACH = everyday(
    [f"{kind} {part}" for kind in MODELS for part in range(6)], *(f"{k} 0" for k in MODELS)
)


@pytest.mark.parametrize("case", EACH)
def test_each_optional_tensor_and_key_is_read_or_refused_by_its_name(case, tmp_path):
    """One at a time, over the registry; every day a sixth of them for each architecture."""
    kind, part = case.split()
    first = (int(part) + list(MODELS).index(kind)) % 6
    written, own = made(kind), {**KEYS, **MODELS[kind][2]}
    have = get_gguf_hf_weights_map(written, TensorProcessor())
    one = {name: {name: np.ones(32, dtype=np.float32)} for name in TENSORS if name not in have}
    for name in list(one)[first::6]:
        said = read_or_refused(tmp_path, kind, name, written, made, tensors=one[name])
        # a bias that transformers has with others only
        assert name in said or "no weights for model.layers" in said, (kind, name)
    every = {**MORE, **WITHOUT_EFFECT}
    for key in [key for key in every if own.get(key) is None][first::6]:
        fields = {} if key in WITHOUT_EFFECT else meant(kind, key)
        read = partial(made, kind, **fields)
        said = read_or_refused(tmp_path, kind, key, written, read, keys={key: every[key]})
        named = rf"{kind}\.{key}|blk\.0\.\w+\.weight|epsilon|rope\.dimension_count"
        assert not said or re.search(named, said), (kind, key, said)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.layer_norm_epsilon", 0.3),
        ("attention.layer_norm_rms_epsilon", [1e-5]),
        ("rope.freq_base", "ten"),
        ("rope.freq_base", 0.0),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.factor", [2.0]),
        ("attention.head_count_kv", 2.5),
        ("context_length", "long"),
    ],
)
def test_values_that_disagree_or_are_of_another_type_are_refused(kind, key, value, tmp_path):
    with pytest.raises(
        hb.HessblocksError,
        match=r"epsilon|rope|head_c|cannot be loaded|the wrong type",
    ):
        hb.load(write(tmp_path / "m.gguf", kind, made(kind), {key: value}))


POSITIONS = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"type": "yarn", "factor": 4.0, "original_context_length": 32},
    ),
}


@pytest.mark.parametrize("scaling", POSITIONS)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_scaled_positions_are_read(kind, scaling, tmp_path):
    rope, keys = POSITIONS[scaling]
    model = made(kind, rope_parameters={**BASE, **rope})
    keys = {f"rope.scaling.{key}": value for key, value in keys.items()}
    assert_same(write(tmp_path / "m.gguf", kind, model, keys), model)


@pytest.mark.parametrize(("factor", "length"), [(8.0, 64), (32.0, 8192)])
def test_the_factors_of_llama_3_are_read(factor, length, tmp_path):
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": length}
    model = made("llama", rope_parameters={**BASE, **rope})
    plain = 5000.0 ** -(torch.arange(0, 8, 2) / 8)
    factors = {"rope_freqs.weight": (plain / model.model.rotary_emb.inv_freq).numpy()}
    assert_same(write(tmp_path / "m.gguf", "llama", model, tensors=factors), model)
    factors["rope_freqs.weight"] = factors["rope_freqs.weight"] + np.float32([0, 0.3, 0, 0.1])
    with pytest.raises(hb.ArgumentError, match=r"rope_freqs\.weight"):
        hb.load(write(tmp_path / "m.gguf", "llama", model, tensors=factors))


def test_global_layers_of_gemma_3_may_be_scaled(tmp_path):
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    local = {"rope_type": "default", "rope_theta": 10000.0}
    rope = {"full_attention": full, "sliding_attention": local}
    model = made("gemma3", rope_parameters=rope)
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert_same(write(tmp_path / "m.gguf", "gemma3", model, keys), model)


def test_a_part_of_a_split_file_is_refused(tmp_path):
    with pytest.raises(hb.ArgumentError, match=r"split\.count"):
        hb.load(write(tmp_path / "m.gguf", "llama", made("llama"), {"split.count": 2}))


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
@pytest.mark.parametrize("value", [None, -5, 0, "two", 2.5])
def test_sizes_are_named_and_positive(key, value, tmp_path):
    with pytest.raises(hb.RunError, match=key):
        hb.load(write(tmp_path / "m.gguf", "llama", made("llama"), {key: value}))


def test_other_sizes_than_the_tensors_have_are_refused_before_the_model_is_made(tmp_path):
    keys = {"embedding_length": 1 << 20, "feed_forward_length": 1 << 20}
    with pytest.raises(hb.RunError, match="entries, expected"):
        hb.load(write(tmp_path / "m.gguf", "llama", made("llama"), keys))


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def header(tensors, fields, rest):
    kind = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + kind + rest


HEADERS = {
    "array of bytes": header(0, 2, text("a") + struct.pack("<IIQ", 9, 0, 1 << 63)),
    "array of texts": header(0, 2, text("a") + struct.pack("<IIQ", 9, 8, 1 << 40)),
    "array of arrays": header(0, 2, text("a") + struct.pack("<IIQ", 9, 9, 1 << 40)),
    "text": header(0, 2, text("a") + struct.pack("<IQ", 8, 1 << 60)),
    "name": header(0, 2, struct.pack("<Q", 1 << 60)),
    "fields": header(0, 1 << 62, b""),
    "tensors": header(1 << 62, 1, b""),
    "axes": header(1, 1, text("t") + struct.pack("<I", 1 << 31)),
    "entries": header(1, 1, text("t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0)),
    "offset": header(1, 1, text("t") + struct.pack("<IQIQ", 1, 1, 0, (1 << 64) - 32)),
    "type": header(1, 1, text("t") + struct.pack("<IQIQ", 1, 1, 999, 0)),
    "no sizes": header(0, 1, b""),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_a_hundred_bytes_is_answered_at_once(name, tmp_path):
    (tmp_path / "m.gguf").write_bytes(HEADERS[name])
    start = time.process_time()
    with pytest.raises(hb.RunError):
        hb.load(tmp_path / "m.gguf")
    assert time.process_time() - start < 20  # to count to the least of these sizes takes minutes


def test_the_stored_types_are_kept_and_told(tmp_path):
    path = write(tmp_path / "m.gguf", "llama", made("llama"), type_=gguf.GGMLQuantizationType.Q4_1)
    loaded, _ = hb.load(path)
    types = loaded.config.stored_types
    assert types["model.layers.0.mlp.up_proj.weight"] == "Q4_1"
    assert types["model.layers.0.mlp.down_proj.weight"] == "F32"  # 48 are no whole block
    assert "model.norm.weight" not in types
    assert stored_words(loaded.config) == "14 of 16 matrices were stored in 4 bits (Q4_1)"
    loaded.save_pretrained(tmp_path / "model")
    again = hb.from_pretrained_blocks(tmp_path / "model")  # the history goes along
    assert stored_words(again.config) == "14 of 16 matrices were stored in 4 bits (Q4_1)"
    assert not stored_words(made("llama").config)


class Notes(Progress):
    def __init__(self):
        super().__init__()
        self.words = []

    def note(self, text):
        self.words.append(text)


def test_stored_bits_stand_on_the_page_of_curvature_and_in_its_store(tmp_path):
    path = write(tmp_path / "m.gguf", "llama", made("llama"), type_=gguf.GGMLQuantizationType.Q4_1)
    few = {"groups": ["layers.1.attention.key"], "probes": 4, "sequences": 2, "tokens": 8}
    few |= {"parts": ["outer"], "eigenvalues": 0, "out": tmp_path / "out"}
    notes = Notes()
    hb.measure_curvature(path, "random", finish=write_curvature_report, progress=notes, **few)
    said = "14 of 16 matrices were stored in 4 bits (Q4_1)"
    assert said in notes.words
    assert f"Of the model, {said}." in (tmp_path / "out" / "report.html").read_text()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model"]["stored"] == said


OTHERS = {*GGUF_CONFIG_MAPPING} - {*MODELS, "general", "tokenizer"}


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_an_architecture_that_is_not_tried_here_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, kind, ("Llama", {"rope_parameters": BASE}, {}))
    with pytest.raises(hb.HessblocksError):
        hb.load(write(tmp_path / "m.gguf", kind, made(kind)))


def test_special_tokens_stay_when_a_model_becomes_blocks():
    model = made("llama", rms_norm_eps=1e-5)
    blocks = hb.from_pretrained_blocks(model)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(blocks.config, name) == getattr(model.config, name) is not None
