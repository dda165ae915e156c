"""Writes small models in llama.cpp's format, as its own package does."""

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def tiny_llama():
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


def byte_level(steps):
    """Byte-level BPE tokeniser of 300 entries or fewer, which splits text first in these steps."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = steps, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator(["the cat sat on the mat in 2024, it's said"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SMOL = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES])
