"""Let the tokeniser of a GGUF file split text as llama.cpp does, and name how another one does.

transformers reads tokens and merges, but only some names of `tokenizer.ggml.pre`: it splits like
GPT-2 where it knows none. It does not read `tokenizer.ggml.add_space_prefix`.
"""

from collections import Counter
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import GemmaTokenizer
from transformers.integrations.gguf import gguf_tokenizer_mapping

from hessblocks.escape import printable

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"]
_SYMBOLS, _PHRASE = r"[\p{P}\$\+<=>\^~\|]+", r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN, _JAPANESE = "[一-龥ࠀ-一가-퟿]+", "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES = {
    "llama-bpe": (LLAMA_3,),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum": (GPT_2,),
    "modern-bert mpt olmo jais trillion granite-docling exaone4": (GPT_2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (r"\p{N}", GPT_2),
    "default": (_SYMBOLS, GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": (_SYMBOLS.replace("|]", "|`]"), GPT_2, "[0-9][0-9][0-9]"),
    "bloom poro-chat gpt3-finnish": (_PHRASE,),
    "viking": (_PHRASE, r"\p{N}"),
    "smaug-bpe chatglm-bpe glm4": (LLAMA_3,),
    "qwen2 stablelm2 hunyuan solar-open grok-2": (LLAMA_3.replace("{1,3}", ""),),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    "deepseek-v3 hunyuan-dense joyai-llm": (r"\p{N}{1,3}", _JAPANESE, _DEEPSEEK_3),
}
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPLITS = {name: split for names, split in _NAMES.items() for name in names.split()} | {
    # in llama.cpp ASCII alone has capitals and small letters, and no mark is one
    name: (split.replace(_CAPITALS, r"[\p{L}&&[^a-z]]").replace(_SMALL, r"[\p{L}&&[^A-Z]]"),)
    for name, split in gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS.items()
}
"""llama.cpp's name → regular expressions; each splits what the one before left, into the matches
and what lies between."""
STARTS = {
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("jina-v5-nano", "tekken"),
}
"""Names with which text begins with `<bos>`, if the file does not say otherwise."""
WHOLE = {*STARTS, "glm4"}  # llama.cpp of October 2026 has glm4 too, that of 2025 did not
"""Names with which a piece that is a token stays whole, even where no merges lead to it."""


def follow_file(tokenizer: Any, reader: Any) -> None:
    """Make a tokeniser that transformers read from a GGUF file split text as llama.cpp does.

    Args:
        tokenizer: transformers' tokeniser of the file; is modified.
        reader: the file's reader.

    Raises:
        ValueError: the name under `tokenizer.ggml.pre` is unknown, or fields disagree.
    """
    fields = {
        key.removeprefix("tokenizer.ggml."): field
        for key, field in reader.fields.items()
        if key.startswith("tokenizer.ggml.")
    }
    _check_fields(fields)
    names = ("model", "pre", "add_bos_token", "add_space_prefix")
    model, pre, start, prefix = (fields[n].contents() if n in fields else None for n in names)
    backend, name = tokenizer.backend_tokenizer, pre or "default"
    if model == "gpt2":
        if name not in SPLITS:
            raise ValueError(f"tokenizer.ggml.pre = {printable(repr(name))[:40]} is unknown")
        steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[name]]
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_])
        backend.model.ignore_merges = name in WHOLE
        if start is None and name in STARTS:
            tokenizer.add_bos_token = True
    elif model == "llama" and (prefix is not None or not isinstance(tokenizer, GemmaTokenizer)):
        spaces = normalizers.Replace(" ", "▁")
        first = [] if prefix is False else [normalizers.Prepend("▁")]
        backend.normalizer, backend.pre_tokenizer = normalizers.Sequence([*first, spaces]), None


def _check_fields(fields: dict[str, Any]) -> None:
    """Refuse lists of unlike length, tokens that are named twice, and flags that are words."""
    tokens = fields["tokens"].contents()
    for name in {"scores", "token_type"} & {*fields}:
        if len(fields[name].data) != len(tokens):
            lengths = f"{len(fields[name].data)} entries, tokenizer.ggml.tokens {len(tokens)}"
            raise ValueError(f"tokenizer.ggml.{name} has {lengths}")
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        raise ValueError(f"tokenizer.ggml.tokens names {printable(twice[0])[:40]} twice")
    for name, field in fields.items():
        if name.startswith("add_") and not isinstance(field.contents(), bool):
            raise ValueError(f"tokenizer.ggml.{name} is not true or false")


def split_name(stored: dict[str, Any]) -> str | None:
    """Find llama.cpp's name for the way in which a byte-level tokeniser splits text.

    Args:
        stored: content of its tokenizer.json.

    Returns:
        The name; None if llama.cpp would read the tokeniser as another one. A normalizer NFC is
        passed over, as Qwen2's is: llama.cpp gives other tokens of text that is not in NFC.
    """
    steps = stored["pre_tokenizer"] or {}
    *splits, last = steps.get("pretokenizers", [steps]) or [{}]
    if last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        return None
    normalizer = stored["normalizer"] or {}
    parts = normalizer.get("normalizers", [normalizer])
    if any(part.get("type", "NFC") != "NFC" for part in parts):  # llama.cpp has none
        return None
    expressions = (*map(_expression, splits), *[GPT_2] * last["use_regex"])
    whole = bool(stored["model"].get("ignore_merges"))
    names = (n for n, split in SPLITS.items() if split == expressions and (n in WHOLE) == whole)
    return next(names, None)


def _expression(step: dict[str, Any]) -> str | None:
    if step["type"] == "Digits" and step["individual_digits"]:
        return r"\p{N}"
    if step["type"] != "Split" or not (expression := step["pattern"].get("Regex")):
        return None
    # the parts between matches are removed; there are none where every character matches
    every = r"[^\s\p{L}" in expression and expression.endswith(r"|\s+") and r"\p{N}" in expression
    kinds = [("Isolated", False), *[("Removed", True)] * every]
    return expression if (step["behavior"], step["invert"]) in kinds else None
