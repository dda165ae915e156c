"""The trained model and its tokeniser on disk."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hessblocks.data import Corpus
from hessblocks.data.tokens import END_OF_TEXT
from hessblocks.files import atomic_folder
from hessblocks.training.checkpoints import seal, writing
from hessblocks.training.quiet import quiet


def save_model(model: PreTrainedModel, corpus: Corpus, context: int, folder: Path) -> None:
    """Save model and tokeniser as Hugging Face reads them, whole or not at all.

    Raises:
        RunError: the folder cannot be written.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=corpus.tokenizer, eos_token=END_OF_TEXT, model_max_length=context
    )
    with atomic_folder(folder) as temporary, quiet(), writing(temporary):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        seal(temporary, {})
