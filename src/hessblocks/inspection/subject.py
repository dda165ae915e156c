"""Load a language model together with its tokeniser."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from hessblocks.models import context_of, fingerprint, load_saved

WITHOUT_EFFECT = {
    "_name_or_path", "architectures", "dtype", "transformers_version", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip
"""Entries of a configuration that do not affect the model's results."""
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

    @property
    def vocabulary(self) -> int:
        """Number of token ids of the model."""
        size: int = self.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        return size

    @property
    def context(self) -> int | None:
        """Longest sequence in tokens; None if the model has no limit."""
        return context_of(self.model)

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
        """Return digests of weights and configuration; models with equal digests are equal."""
        return {"fingerprint": fingerprint(self.model), "configuration": self.configuration()}


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
    return Subject(name=saved.name, model=model, tokenizer=saved.tokenizer())
