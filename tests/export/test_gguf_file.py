"""GGUF files: bytes as forecast, weights as priced, headers of files and of folders, refusals."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import hessblocks as hb
from hessblocks import export
from hessblocks.errors import ArgumentError, RunError
from tests.models.gguf_files import SMOL, byte_level, tiny_llama, write

gguf = pytest.importorskip("gguf")
pytest.importorskip("libgguf")
KINDS = ("Q4_0", "IQ4_NL", "Q5_1", "Q8_0", "MXFP4")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write(tiny_llama(), str(tmp_path_factory.mktemp("gguf") / "tiny.gguf")))


def choices(model: nn.Module, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Formats in turn, with importance where llama.cpp has it."""
    own = [hb.formats()[f"gguf:{kind}"] for kind in kinds]
    return {
        name: (own[n % len(own)], None if "embed" in name else torch.rand(p.shape[1]) + 0.1)
        for n, (name, p) in enumerate(model.named_parameters())
        if p.ndim == 2
    }


def written(source: str, model: Any, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    chosen = choices(model)
    header = export.header_of(source, model, tokenizer)
    names = export.gguf_tensors(model, header.architecture)
    packed = {
        name: (own.pack(model.get_parameter(name).detach(), importance), own.name[len("gguf:") :])
        for name, (own, importance) in chosen.items()
    }
    export.write_gguf(path, header, export.stored_tensors(model, names, packed))
    return chosen


def check_same(model: nn.Module, again: nn.Module, chosen: dict[str, Any]) -> None:
    for name, parameter in model.named_parameters():
        own, importance = chosen.get(name, (None, None))
        expected = own.rounded(parameter, importance) if own else parameter
        assert torch.equal(again.get_parameter(name), expected), name


def test_what_is_read_back_is_what_was_rounded_bit_by_bit(source: Path, tmp_path: Path) -> None:
    model, tokenizer = hb.load(source)
    chosen = written(str(source), model, tmp_path / "out.gguf")
    again, other = hb.load(tmp_path / "out.gguf")
    check_same(model, again, chosen)
    values = export.read_gguf(tmp_path / "out.gguf", export.gguf_tensors(model, "llama"))
    assert all(torch.equal(again.get_parameter(name), value) for name, value in values.items())
    assert other("abcab")["input_ids"] == tokenizer("abcab")["input_ids"]
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    names = export.gguf_tensors(model, "llama")
    for name, (own, _) in chosen.items():
        tensor = tensors[names[name][0]]
        assert int(tensor.n_bytes) == own.bytes(model.get_parameter(name).shape)
        assert f"gguf:{tensor.tensor_type.name}" == own.name


def test_the_header_is_the_sources_and_its_size_is_known(source: Path, tmp_path: Path) -> None:
    model, _ = hb.load(source)
    written(str(source), model, tmp_path / "out.gguf")
    before, after = (gguf.GGUFReader(path) for path in (source, tmp_path / "out.gguf"))
    for key, field in before.fields.items():
        if not key.startswith("GGUF."):
            assert after.fields[key].contents() == field.contents(), key
            assert after.fields[key].types == field.types, key
    header = export.header_of(str(source), model, None)
    stored = sum(int(t.n_bytes) for t in after.tensors)
    most = header.bytes({t.name: len(t.shape) for t in after.tensors})
    size = (tmp_path / "out.gguf").stat().st_size
    assert after.data_offset <= most
    assert size - stored <= most <= size - stored + 31 * len(after.tensors)


SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 300,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_a_folder_becomes_a_file_that_transformers_opens_as_the_same_model(
    kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Any = (
        LlamaForCausalLM(LlamaConfig(**SIZES, rope_theta=5e4, tie_word_embeddings=True))
        if kind == "llama"
        else Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=128, tie_word_embeddings=False))
        if kind == "qwen3"
        else MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=16))
    ).eval()
    tokenizer = byte_level(SMOL)
    chosen = written(str(tmp_path), model, tmp_path / "out.gguf", tokenizer)
    again, other = hb.load(tmp_path / "out.gguf")
    check_same(model, again, chosen)
    with torch.no_grad():
        for name, (own, importance) in chosen.items():
            model.get_parameter(name).copy_(own.rounded(model.get_parameter(name), importance))
        ids = torch.arange(24)[None] % 300
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-6)
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    said = "the cat sat in 2024"
    assert other(said)["input_ids"] == tokenizer(said)["input_ids"]


SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
REFUSED = {
    "another family": (
        lambda: GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1)),
        SMOL,
        "a model of the kind gpt2 are not known here; known are those of Llama",
    ),
    "scaled positions": (
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=SCALED)),
        SMOL,
        "scaled rotary positions",
    ),
    "another activation": (
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")),
        SMOL,
        "this one has gelu, and would be read as another model",
    ),
    "biases": (
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
        SMOL,
        "this one has biases",
    ),
    "another tokeniser": (
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        pre_tokenizers.Whitespace(),
        "way in which this tokeniser splits text is not known",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_would_read_otherwise_is_refused(case: str, tmp_path: Path) -> None:
    make, steps, said = REFUSED[case]
    with pytest.raises(ArgumentError, match=said):
        export.header_of(str(tmp_path), make(), byte_level(steps))


def test_a_model_whose_tensors_have_no_names_is_refused(source: Path) -> None:
    model = hb.build("sas", depth=1, width=32, heads=2, vocab_size=40, context=8)
    with pytest.raises(ArgumentError, match="tensors of HessblocksForCausalLM are not known here"):
        export.gguf_tensors(model, "llama")


def test_a_full_disk_leaves_no_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    model, _ = hb.load(source)
    with pytest.raises(RunError, match="No space left"):
        written(str(source), model, tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_as_the_last_bytes_are_flushed_leaves_no_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = gguf.GGUFWriter.close

    def cut_short(writer: Any) -> None:
        close(writer)
        for path in tmp_path.iterdir():
            os.truncate(path, path.stat().st_size - 200)

    monkeypatch.setattr(gguf.GGUFWriter, "close", cut_short)
    model, _ = hb.load(source)
    with pytest.raises(RunError, match="No space left"):
        written(str(source), model, tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())


def test_the_size_of_a_header_covers_the_filling_of_small_tensors(tmp_path: Path) -> None:
    header = export.GgufHeader("llama", {"general.architecture": "llama"})
    tensors = {name: (torch.ones(1), "F32") for name in "abcdef"}
    export.write_gguf(tmp_path / "small.gguf", header, tensors)
    size, stored = (tmp_path / "small.gguf").stat().st_size, 4 * len(tensors)
    assert 0 <= header.bytes(dict.fromkeys(tensors, 1)) + stored - size < 6 * 32


def test_other_tensors_of_the_source_are_kept(tmp_path: Path) -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, rope_theta=5e4)).eval()
    tokenizer = byte_level(SMOL)
    written(str(tmp_path), model, tmp_path / "plain.gguf", tokenizer)
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    header = export.header_of(str(tmp_path / "plain.gguf"), model, None)
    tensors = {
        t.name: (torch.from_numpy(t.data.copy()), t.tensor_type.name) for t in reader.tensors
    }
    factors = torch.linspace(1, 8, 8)
    export.write_gguf(
        tmp_path / "scaled.gguf",
        header,
        {**tensors, "rope_freqs.weight": (factors, "F32")},
    )
    bill = hb.price(
        hb.Problem(model, {"input_ids": torch.randint(300, (8, 8))}),
        hb.change_each(model, hb.in_format("gguf:Q8_0")),
        8,
    )
    bill.chosen([*bill]).save(tmp_path / "out.gguf", source=str(tmp_path / "scaled.gguf"))
    kept = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}["rope_freqs.weight"]
    assert torch.equal(torch.from_numpy(kept.data.copy()), factors)


def test_an_allocation_writes_its_file_and_refuses_another_runtimes(
    source: Path, tmp_path: Path
) -> None:
    model, _ = hb.load(source)
    data = {"input_ids": torch.randint(len(model.get_input_embeddings().weight), (8, 8))}
    found = hb.quantise(model, data, ["gguf:Q4_0", "gguf:Q8_0"], bits=7, samples=8)
    found.save(tmp_path / "out.gguf", source=str(source))
    stored = sum(int(t.n_bytes) for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors)
    assert stored == found.bytes
    check_same(model, hb.load(tmp_path / "out.gguf")[0], found.formats)
    found.save(tmp_path / "choices.csv")
    assert (tmp_path / "choices.csv").read_text().startswith("place,how,bits,bytes")
    with pytest.raises(ArgumentError, match="file holds gguf: formats"):
        found.save(tmp_path / "folder")
    rounding = hb.price(hb.Problem(model, data), hb.change_each(model, hb.rounded(bits=4)))
    with pytest.raises(ArgumentError, match="has no storage format"):
        rounding.allocate(bits=4).save(tmp_path / "out.gguf", source=str(source))
