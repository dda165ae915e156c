"""Draw windows of a text with the tokeniser of a pretrained model."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from hessblocks.conventions import AnyPath
from hessblocks.data.corpus import Windows
from hessblocks.data.python_code import user_files
from hessblocks.data.texts import Text, pieces_of, thinned
from hessblocks.errors import ArgumentError, check_whole
from hessblocks.escape import printable

FILE_NAME = re.compile(r"(?!\S{256})(\S*[/\\]\S*|\S+\.\w{1,8})")
"""What is taken for a path, not a text: short, no space, and a separator or an ending."""
MOST_CHARACTERS = 4_000_000
"""About how many characters of a longer text are read, in evenly spread pieces of a million."""


def text_batch(
    tokenizer: Any,
    text: AnyPath,
    *,
    tokens: int = 128,
    sequences: int = 8,
    seed: int = 0,
    bare: bool = False,
) -> dict[str, Int[Tensor, "sequences tokens"]]:
    """Draw a batch of windows from a text, with the tokeniser of a pretrained model.

    Args:
        tokenizer: tokeniser of transformers, as `hb.load` returns it with a model.
        text: path of a file or folder; if there is none of this name, the text itself.
        tokens: tokens per window, at least 2, with those that the tokeniser puts first.
        sequences: number of windows, drawn without replacement.
        seed: seed of the draw.
        bare: whether to leave out what the tokeniser's template puts first, such as `<bos>`.

    Returns:
        {"input_ids": (sequences, tokens)}, a batch for `hb.Problem`.

    Raises:
        ArgumentError: `tokenizer` is none, a file is not there or cannot be read, a number is not
            whole or too small, or there are fewer windows.

    Cost: encodes at most four million characters.

    Examples:
        >>> import transformers, hessblocks as hb
        >>> tokenizer = transformers.ByT5Tokenizer()  # or the one of hb.load
        >>> batch = hb.text_batch(tokenizer, "To be, or not to be. " * 20, tokens=16, sequences=4)
        >>> batch["input_ids"].shape
        torch.Size([4, 16])
    """
    if tokenizer is None:
        raise ArgumentError("tokenizer: this model has none; give {'input_ids': ...} of your own.")
    if not callable(tokenizer):
        raise ArgumentError(f"tokenizer: expected one of transformers, got {tokenizer!r:.50}")
    check_whole(2, tokens=tokens)
    check_whole(1, sequences=sequences)
    check_whole(0, seed=seed)
    ids = encoded(tokenizer, documents_of(text))
    name = "the text" if isinstance(text, str) and not os.path.exists(text) else str(text)
    windows = Windows(ids, tokens, template_start(tokenizer, bare))
    return {"input_ids": windows.drawn(sequences, seed, "sequences", name)}


def template_start(tokenizer: Any, bare: bool = False) -> list[int]:
    """Find the tokens that a tokeniser's template puts before a text, such as `<bos>` or `[CLS]`.

    Args:
        tokenizer: tokeniser of transformers; None: there is none.
        bare: whether to leave them out.

    Returns:
        Their ids; empty if it puts none.
    """
    if bare or tokenizer is None:
        return []
    plain = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    templated = tokenizer("a", verbose=False)["input_ids"]
    starts = range(len(templated) - len(plain) + 1)
    return next((templated[:n] for n in starts if templated[n : n + len(plain)] == plain), [])


def start_words(tokenizer: Any, bare: bool = False) -> str:
    """Say what each window begins with; empty if the template puts nothing first."""
    if not (first := template_start(tokenizer, bare)):
        return ""
    shown = printable(" ".join(map(str, tokenizer.convert_ids_to_tokens(first))))
    return f"each window begins with {shown}, as the tokenizer has it; --bare leaves it out"


def documents_of(text: AnyPath) -> list[Text]:
    """Read the documents of a file or folder, or use a text as one document.

    Args:
        text: see `text_batch`.

    Returns:
        Documents, in order; files that are not text are left out.

    Raises:
        ArgumentError: there is no text at the path, no file of this name, or `text` is neither.
    """
    if not isinstance(text, str | os.PathLike):
        raise ArgumentError(f"text: expected a path or a text, got {type(text).__name__}")
    if isinstance(text, str) and not os.path.exists(text):
        if FILE_NAME.fullmatch(text):
            raise ArgumentError(f"text: {text!r} is not a file, a folder or a text with spaces")
        return [text]
    source = user_files(Path(text))
    return [document for split in source.splits for _, document in source.read(split)]


def encoded(tokenizer: Any, documents: Iterable[Text]) -> np.ndarray[Any, Any]:
    """Encode documents; each ends with the tokeniser's end-of-text token, if it has one.

    Special tokens that a document names, as text about tokenisers does, are read as plain text.

    Args:
        tokenizer: tokeniser of transformers.
        documents: documents; about `MOST_CHARACTERS` characters at most are read, spread evenly.

    Returns:
        Token ids.
    """
    documents = list(documents)
    characters = sum(map(len, documents))
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    if characters > MOST_CHARACTERS:
        documents = list(thinned(documents, characters, MOST_CHARACTERS))
    plain = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    for document in documents:
        for piece in pieces_of(document):
            ids += tokenizer(piece, **plain)["input_ids"]
        ids += end
    return np.asarray(ids, dtype=np.int64)
