"""Tiny saved models with a tokeniser of words, and texts whose label is one of their words."""

import csv
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import hessblocks as hb

WORDS = ("good", "bad", "film", "plot", "the", "a", "was", "very", "great", "poor")
CONTEXT = 12


def tokenizer(special: tuple[str, ...], *, pairs: bool) -> PreTrainedTokenizerFast:
    vocabulary = {word: place for place, word in enumerate((*special, "[UNK]", *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if not pairs:
        return PreTrainedTokenizerFast(
            tokenizer_object=made, eos_token=special[0], unk_token="[UNK]"
        )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def bert(folder: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, intermediate_size=32, vocab_size=14, max_position_embeddings=CONTEXT
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer(("[PAD]", "[CLS]", "[SEP]"), pairs=True).save_pretrained(folder)


def gpt2(folder: Path) -> None:
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 12, "n_positions": CONTEXT}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder)
    tokenizer(("<|endoftext|>",), pairs=False).save_pretrained(folder)


def ours(task: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        sizes = {"depth": 1, "width": 16, "heads": 2, "vocab_size": 12, "context": CONTEXT}
        hb.build("sas-p", task=task, **sizes).save_pretrained(folder)
        tokenizer(("<|endoftext|>",), pairs=False).save_pretrained(folder)

    return save


KINDS = {"bert": bert, "gpt2": gpt2, "sas-p": ours("causal-lm"), "masked": ours("masked-lm")}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of pretrained models, by kind."""
    folders = {}
    for kind, save in KINDS.items():
        torch.manual_seed(0)
        folders[kind] = tmp_path_factory.mktemp("saved") / kind
        save(folders[kind])
    return folders


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 texts, two thirds of them `praise`, which one word tells from `blame`."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "reviews.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "more", "label"))
        for number in range(120):
            label = ("praise", "blame", "praise")[number % 3]
            words = draw.choices(WORDS[2:8], k=draw.randint(3, 8))
            telling = ("good", "great") if label == "praise" else ("bad", "poor")
            words.insert(draw.randint(0, 3), draw.choice(telling))
            rows.writerow((" ".join(words), f"the film {number}", label))
    return path
