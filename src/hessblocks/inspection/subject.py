"""Load a language model together with its tokeniser."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import nn

from hessblocks.data import encoded
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models import context_of, fingerprint, load_saved, stored_words

WITHOUT_EFFECT = {
    "_name_or_path", "architectures", "dtype", "transformers_version", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict", "stored_types",
}  # fmt: skip
"""Entries of a configuration that do not affect the model's results."""
NOT_OF_THE_FUNCTION = WITHOUT_EFFECT | {
    "stored_types", "initializer_range", "embedding_std", "max_position_embeddings", "preset",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "auto_map",
    "pretraining_tp", "task_specific_params", "id2label", "label2id", "family",
    "quantization_config",
}  # fmt: skip
"""Entries that models of one function may differ in."""
SPLIT = "It's 2024, x_1 = (3.14 +\t1e-9)!\n\n  We'LL\r\nnaïve 漢字 ABCdef "
"""Text with much of what tokenisers split in different ways."""
MOST_WORDS = 5000
"""Tokens of a vocabulary, about, whose text two tokenisers are compared by."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Memory address in the default `repr` of an object, which differs between processes."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model with its name and tokeniser."""

    name: str
    """Short name, for tables and titles."""
    model: nn.Module
    """Language model in evaluation mode and float32."""
    tokenizer: Any = None
    """Tokeniser of transformers; None if there is none."""
    lacks: str = ""
    """Why its tokeniser cannot be read; empty if it can, or if there is none."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids of the model."""
        return int(self.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]

    def encoded(
        self, documents: Sequence[Any], window: int, otherwise: str = ""
    ) -> Int[np.ndarray, " tokens"]:
        """Encode documents that are then cut into windows.

        Args:
            documents: texts, or conversations for the chat template.
            window: tokens of a window.
            otherwise: what else helps where the tokeniser is another model's.

        Returns:
            Token ids of all documents, one after the other.

        Raises:
            ArgumentError: a window is longer than the context, or the model does not know a token.
        """
        self.check_window(window)
        ids = encoded(self.tokenizer, documents)
        if ids.size and ids.max() >= self.vocabulary:
            raise ArgumentError(
                f"MODEL: the tokenizer of {self.name} gives token ids up to {ids.max()}, the model "
                f"knows those below {self.vocabulary}; give the tokenizer that it was trained with"
                f"{otherwise}."
            )
        return ids

    def check_window(self, tokens: int) -> None:
        """Refuse windows that are longer than the context.

        Raises:
            ArgumentError: they are longer.
        """
        context = context_of(self.model)
        if context is not None and tokens > context:
            raise ArgumentError(
                f"--tokens: {tokens} are longer than the context of {context} of {self.name}; "
                f"add --tokens {context}."
            )

    @property
    def ours(self) -> bool:
        """True if hessblocks built the model, so that it may have been trained on the text."""
        return getattr(getattr(self.model, "config", None), "model_type", "") == "hessblocks"

    def configuration(self) -> str:
        """Compute the SHA-256 of the configuration and of the `repr` of all modules."""
        config: Any = getattr(self.model, "config", None)
        values = config.to_dict() if hasattr(config, "to_dict") else config
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if name not in WITHOUT_EFFECT}
        text = json.dumps(values, sort_keys=True, default=repr) + repr(self.model)
        return hashlib.sha256(_ADDRESS.sub("", text).encode()).hexdigest()

    def digests(self) -> dict[str, str]:
        """Return digests of weights and configuration, and `stored` where that is fewer bits.

        Models with equal digests are equal.
        """
        stored = stored_words(getattr(self.model, "config", None))
        digests = {"fingerprint": fingerprint(self.model), "configuration": self.configuration()}
        return {**digests, "stored": stored} if stored else digests


def other_function(first: Any, second: Any, tokenizers: Sequence[Any]) -> list[str]:
    """List what makes two models of equal shapes different functions of a text.

    Args:
        first: configuration of a model.
        second: configuration of the other.
        tokenizers: their tokenisers; None for one that has none.

    Returns:
        Names of entries of the configurations, and what `other_tokens` returns.
    """
    left, right = (dict(_entries(config.to_dict(), "")) for config in (first, second))
    names = [name for name in {**left, **right} if not _alike(left.get(name), right.get(name))]
    return [*names, *other_tokens(tokenizers)]


def other_tokens(tokenizers: Sequence[Any]) -> list[str]:
    """Name what makes two tokenisers give different tokens, if they do.

    Args:
        tokenizers: the tokenisers; None for one that is missing.

    Returns:
        `vocabulary`, or `tokenizer` where merges or the way in which text is split differ.
    """
    if None in tokenizers:
        return []
    model, other = tokenizers
    if model.get_vocab() != other.get_vocab():
        return ["vocabulary"]
    # a GGUF file lacks the flags of added tokens, which no text holds but by their spelling
    added = {*model.added_tokens_decoder} & {*other.added_tokens_decoder}
    some = {*range(0, len(model), 1 + len(model) // MOST_WORDS)} - added
    text = SPLIT + " ".join(model.decode([number]) for number in sorted(some))
    own, theirs = (_ids(tokenizer, text) for tokenizer in tokenizers)
    return ["tokenizer"] * (own != theirs)


def _ids(tokenizer: Any, text: str) -> Any:
    """Encode a text; None if the tokeniser refuses a letter of it."""
    try:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    except Exception:  # tokenizers raises no other class
        return None


def _entries(values: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each entry of a configuration that the function depends on."""
    if not isinstance(values, dict):
        yield name, values
        return
    for key, value in values.items():
        if key not in NOT_OF_THE_FUNCTION and "dropout" not in key:
            yield from _entries(value, f"{name}.{key}".lstrip("."))


def _alike(left: Any, right: Any) -> bool:
    """Compare two entries; GGUF has numbers in float32."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6)
    return bool(left == right)


def saved_model(source: str, task: str) -> Subject:
    """Load a language model from a folder or the local Hugging Face cache.

    Args:
        source: a folder, a run folder of `hessblocks train`, a GGUF file, or a hub name.
        task: task that the model must have a head for, as `hb.load` takes it.

    Returns:
        The model in evaluation mode and float32, with its tokeniser.

    Raises:
        ArgumentError: there is no such folder, or the model has no head for the task.
        RunError: the hub name is not in the local cache, a file is damaged, or a weight is not
            finite.
    """
    model, saved = load_saved(source, task)
    try:
        tokenizer, lacks = saved.tokenizer(needed=True), ""
    except ArgumentError:
        tokenizer, lacks = None, ""
    except RunError as error:
        tokenizer, lacks = None, str(error)
    return Subject(name=saved.name, model=model, tokenizer=tokenizer, lacks=lacks)
