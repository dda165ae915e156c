"""Windows of a text in a pretrained model's own tokens."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import hessblocks as hb
from hessblocks.data import documents_of, encoded, text_batch
from hessblocks.data.text_batch import MOST_CHARACTERS
from hessblocks.data.texts import blocks_of

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"


@pytest.fixture(scope="module")
def tokenizer():
    inner = Tokenizer(models.WordLevel({"<end>": 0} | {c: i + 1 for i, c in enumerate(LETTERS)}))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", unk_token="<end>")


def decoded(ids):
    return "".join(LETTERS[one - 1] if one else "|" for one in ids.tolist())


def test_windows_are_pieces_of_the_text_none_twice(tokenizer):
    text = "".join(LETTERS[i * i % 27] for i in range(200))
    found = text_batch(tokenizer, text, tokens=10, sequences=20)["input_ids"]
    assert found.shape == (20, 10)
    pieces = [decoded(row) for row in found]
    assert all(piece in text for piece in pieces)
    assert sorted(pieces) == sorted(text[at : at + 10] for at in range(0, 200, 10))


def test_the_same_seed_draws_the_same(tokenizer):
    text = "some words that are written down. " * 20
    first, again, other = (
        text_batch(tokenizer, text, tokens=8, sequences=4, seed=seed)["input_ids"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_file_a_path_and_a_folder_are_read(tokenizer, tmp_path):
    (tmp_path / "one.txt").write_text("aaaa")
    (tmp_path / "two.txt").write_text("bbbb")
    (tmp_path / "three.bin").write_bytes(b"\0\1")
    assert ["".join(blocks_of(text)) for text in documents_of(tmp_path)] == ["aaaa", "bbbb"]
    assert "".join(*map(blocks_of, documents_of(str(tmp_path / "one.txt")))) == "aaaa"
    assert decoded(encoded(tokenizer, documents_of(tmp_path))) == "aaaa|bbbb|"
    assert documents_of("no such file") == ["no such file"]


def test_of_a_long_text_pieces_are_read(tokenizer, monkeypatch):
    text = "a" * (2 * MOST_CHARACTERS) + "b" * (2 * MOST_CHARACTERS)
    seen = []
    monkeypatch.setattr(
        type(tokenizer),
        "__call__",
        lambda self, piece, **_: seen.append(piece) or {"input_ids": []},
    )
    encoded(tokenizer, [text])
    assert sum(map(len, seen)) <= 1.1 * MOST_CHARACTERS
    assert {piece[0] for piece in seen} == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": None}, "tokenizer: this model has none"),
        ({"tokenizer": "gpt2"}, "tokenizer: expected one of transformers, got 'gpt2'"),
        ({"tokens": 1}, "tokens: expected a whole number of at least 2, got 1"),
        ({"tokens": 4.5}, "tokens: expected a whole number of at least 2, got 4.5"),
        ({"sequences": 0}, "sequences: expected a whole number of at least 1"),
        ({"seed": "x"}, "seed: expected a whole number of at least 0, got 'x'"),
        ({"text": 5}, "text: expected a path or a text, got int"),
        ({"sequences": 90}, "90 windows of 8 tokens .* the text has"),
        ({"text": "missing.txt"}, "text: 'missing.txt' is not a file, a folder"),
        ({"text": "data/corpus/train"}, "text: 'data/corpus/train' is not a file, a folder"),
        ({"text": "corpus/"}, "text: 'corpus/' is not a file, a folder or a text with spaces"),
        ({"text": "a.parquet"}, "text: 'a.parquet' is not a file, a folder"),
        ({"seed": True}, "seed: expected a whole number of at least 0, got True"),
        ({"text": "words"}, "the text has"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tokenizer, changes, said):
    given = {"tokenizer": tokenizer, "text": "words " * 30, "tokens": 8, "sequences": 4} | changes
    with pytest.raises(hb.ArgumentError, match=said):
        text_batch(given.pop("tokenizer"), given.pop("text"), **given)


def test_a_path_that_is_not_there_is_refused(tokenizer, tmp_path):
    with pytest.raises(hb.ArgumentError, match="is not a file or folder"):
        text_batch(tokenizer, tmp_path / "none.txt")


def test_a_long_document_ends_once() -> None:
    class Letters:
        eos_token_id = 7

        def __call__(self, text, **_):
            return {"input_ids": [1] * (len(text) // 1000)}

    ids = encoded(Letters(), ["x" * 2_500_000, "y" * 1000])
    assert (ids == 7).sum() == 2
    assert ids[-1] == 7
