"""Windows begin as the tokeniser's template has it; special tokens in documents are plain text."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import hessblocks as hb
from hessblocks.data import encoded, start_words, template_start

LETTERS = "abcdefghijklmnopqrstuvwxyz <>/|_"


def tokenizer(template: str | None = "<bos> $A") -> PreTrainedTokenizerFast:
    words = {word: n for n, word in enumerate(["<bos>", "<eos>", *LETTERS])}
    made = Tokenizer(models.WordLevel(words, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if template:
        special = [("<bos>", 0), ("<eos>", 1)]
        made.post_processor = processors.TemplateProcessing(template, None, special)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>")


TEXT = "the quick brown fox " * 30


@pytest.mark.parametrize(
    ("template", "first"), [("<bos> $A", [0]), ("$A", []), (None, []), ("<bos> $A <eos>", [0])]
)
def test_windows_begin_as_the_template_does(template: str | None, first: list[int]) -> None:
    known = tokenizer(template)
    assert template_start(known) == first
    ids = hb.text_batch(known, TEXT, tokens=10, sequences=6)["input_ids"]
    assert ids.shape == (6, 10)
    assert all(row[: len(first)].tolist() == first for row in ids)
    assert not (ids[:, len(first) :] == 0).any()


def test_the_template_can_be_left_out_and_is_reported() -> None:
    known = tokenizer()
    ids = hb.text_batch(known, TEXT, tokens=10, sequences=6, bare=True)["input_ids"]
    assert not (ids == 0).any()
    assert "begins with <bos>" in start_words(known)
    assert not start_words(known, bare=True)
    assert not start_words(None)


def test_windows_share_no_token_of_the_text() -> None:
    ids = hb.text_batch(tokenizer(), LETTERS[:24], tokens=6, sequences=5)["input_ids"]
    assert len(torch.unique(ids[:, 1:])) == 25  # 24 letters, and the end of the text


def test_special_tokens_that_a_document_names_are_plain_text() -> None:
    ids = encoded(tokenizer(), ["a <bos> b"]).tolist()
    assert 0 not in ids
    assert len(ids) == 10  # nine letters, and the end of the text
