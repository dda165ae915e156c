"""Load a language model with what is needed to feed it."""

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
"""Entries of a configuration that do not change the model's numbers."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Ends what Python says of an object that has no words of its own; another in every process."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with what is needed to feed it."""

    name: str
    """Short name, for tables and titles."""
    model: nn.Module
    """A language model in evaluation mode and float32."""
    tokenizer: Any = None
    """Tokenizer of transformers, or None."""

    @property
    def vocabulary(self) -> int:
        """Count the token ids that the model knows."""
        size: int = self.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        return size

    @property
    def context(self) -> int | None:
        """Read the longest sequence, where the model has one."""
        return context_of(self.model)

    @property
    def ours(self) -> bool:
        """Tell whether hessblocks built the model, so that it may have been trained on the text."""
        return getattr(getattr(self.model, "config", None), "model_type", "") == "hessblocks"

    def configuration(self) -> str:
        """Digest all but the weights: configuration, and each module's description (SHA-256)."""
        config: Any = getattr(self.model, "config", None)
        values = config.to_dict() if hasattr(config, "to_dict") else config
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if name not in WITHOUT_EFFECT}
        text = json.dumps(values, sort_keys=True, default=repr) + repr(self.model)
        return hashlib.sha256(_ADDRESS.sub("", text).encode()).hexdigest()

    def said(self) -> dict[str, str]:
        """Digest weights and configuration: if both are equal, so is the curvature."""
        return {"fingerprint": fingerprint(self.model), "configuration": self.configuration()}


def saved_model(source: str, task: str) -> Subject:
    """Load a language model from a folder or the local Hugging Face cache.

    Args:
        source: a folder, a run folder of `hessblocks train`, a GGUF file, or a hub name.
        task: whose head it must have, as `hb.load` takes it.

    Returns:
        The model in evaluation mode and float32, with the tokeniser beside it.

    Raises:
        ArgumentError: no such folder, or a model without the head for the task.
        RunError: a hub name that is not in the local cache, damaged files, or weights that are not
            finite.
    """
    model, saved = load_saved(source, task)
    return Subject(name=saved.name, model=model, tokenizer=saved.tokenizer())
