"""Models in llama.cpp's format: small files written with its own package, read as any model is."""

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks.models import Saved

WORDS = ["<unk>", "<s>", "</s>", *map(chr, range(97, 123)), "ab", "abc"]
MERGES = ["a b", "ab c"]
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight, heads):
    """Rows of queries and keys as llama.cpp rotates them: pairs next to each other."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write(model, path, layers=None, kind="llama"):
    config, state = model.config, model.state_dict()
    out = gguf.GGUFWriter(path, kind)
    out.add_block_count(config.num_hidden_layers if layers is None else layers)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_token_list(WORDS)
    out.add_token_types([3, 3, 3] + [1] * (len(WORDS) - 3))
    out.add_token_merges(MERGES)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    out.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for theirs, ours in NAMES.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if theirs == "attn_q" else 1
                weight = interleaved(weight, heads)
            out.add_tensor(f"blk.{layer}.{theirs}.weight", np.ascontiguousarray(weight.numpy()))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    return write(model, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_gives_the_logits_of_the_model_that_was_written(model, file):
    found, _ = hb.load(file)
    ids = torch.arange(20).view(2, 10) % len(WORDS)
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model(ids).logits, atol=1e-5, rtol=0)


def test_the_tokeniser_is_the_one_that_the_file_holds(file):
    _, tokenizer = hb.load(file)
    ids = tokenizer("abcab", add_special_tokens=False)["input_ids"]
    assert [WORDS[one] for one in ids] == ["abc", "ab"]


def test_the_model_is_an_ordinary_one_that_can_be_saved_and_measured(file, tmp_path, capsys):
    model, tokenizer = hb.load(file)
    assert not capsys.readouterr().err  # no bar of transformers
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = hb.load(tmp_path)
    ids = torch.arange(8)[None]
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    problem = hb.Problem(again, {"input_ids": ids}, loss="causal-lm")
    assert hb.Hessian(problem, hb.parameter_groups(again)["layers.1.attention.query"]).shape


def test_it_is_named_after_its_file(file):
    assert Saved.at(str(file)).name == "tiny"


def cut(file, path, share):
    whole = file.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    return path


@pytest.mark.parametrize("share", [0, 0.01, 0.5])
def test_a_file_that_is_cut_off_is_refused(file, tmp_path, share):
    with pytest.raises(hb.RunError, match=r"short\.gguf is damaged or no GGUF file"):
        hb.load(cut(file, tmp_path / "short.gguf", share))


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("not a model " * 100)
    with pytest.raises(hb.RunError, match="damaged or no GGUF"):
        hb.load(tmp_path / "text.gguf")


def test_an_unknown_architecture_is_refused_with_those_that_are_known(model, tmp_path):
    path = write(model, tmp_path / "other.gguf", kind="mysterious")
    with pytest.raises(hb.ArgumentError, match=r"'mysterious', which .* it reads .*llama"):
        hb.load(path)


def test_more_layers_than_tensors_are_refused_before_they_are_made(model, tmp_path):
    with pytest.raises(hb.RunError, match="names 24 layers"):
        hb.load(write(model, tmp_path / "deep.gguf", layers=24))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(hb.ArgumentError, match="is no file"):
        hb.load(tmp_path / "none.gguf")


def test_without_the_package_it_says_what_to_install(file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(hb.ArgumentError, match="pip install gguf"):
        hb.load(file)


def test_a_model_of_another_task_names_its_own(tmp_path):
    hb.build("pre-ln", depth=1, vocab_size=300, task="masked-lm").save_pretrained(tmp_path)
    with pytest.raises(hb.ArgumentError, match="its task is masked-lm"):
        hb.load(tmp_path)
    model, tokenizer = hb.load(tmp_path, task="masked-lm")
    assert type(model).__name__ == "HessblocksForMaskedLM"
    assert tokenizer is None
    with pytest.raises(hb.ArgumentError, match="task"):
        hb.load(tmp_path, task="translation")
