"""A model is called with a batch, and its logits are found in what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature.losses import Batch, given_labels
from hessblocks.errors import ArgumentError, RunError


class Call:
    """How a model is called, by the signature of its forward pass."""

    def __init__(self, model: nn.Module, *, shift_labels: bool) -> None:
        """Read the signature.

        Args:
            model: any module.
            shift_labels: whether a decoder reads the labels one place further on, unless its inputs are given.
        """
        self._model, self._shift_labels = model, shift_labels
        self._accepted = inspect.signature(model.forward).parameters
        self._extra = {"use_cache": False} if "use_cache" in self._accepted else {}

    def __call__(self, batch: Batch) -> Any:
        """Call the model with a batch.

        Returns:
            What it returns.

        Raises:
            ArgumentError: labels cannot be shifted for its decoder.
        """
        if self._takes_mapping(batch.keywords):
            return self._model(batch.keywords)
        keywords = {**batch.keywords, **self._decoder_inputs(batch), **self._extra}
        return self._model(*batch.arguments, **keywords)

    def _takes_mapping(self, names: Mapping[str, object]) -> bool:
        """Whether the model wants a mapping in one piece: one argument, and none of the mapping's names."""
        needed = [p for p in self._accepted.values() if p.default is p.empty]
        single = len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
        return single and bool(names) and not names.keys() & self._accepted.keys()

    def _decoder_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the decoder of an encoder-decoder reads."""
        if not self._shift_labels or "decoder_input_ids" in batch.keywords:
            return {}
        shift = getattr(self._model, "prepare_decoder_input_ids_from_labels", None)
        if shift is None:
            raise ArgumentError(
                f"loss: seq2seq expects an encoder-decoder of transformers, got {type(self._model).__name__}; "
                "give decoder_input_ids in the batches"
            )
        return {"decoder_input_ids": shift(labels=given_labels(batch))}


def logits_of(outputs: Any) -> Float[Tensor, "... classes"]:
    """The logits in what a model returned: a tensor, a field or key `logits`, or the first of a tuple.

    Args:
        outputs: of the model.

    Returns:
        (..., classes).

    Raises:
        RunError: there are none.
    """
    if isinstance(outputs, Tensor):
        return outputs
    found = getattr(outputs, "logits", None)
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    if found is None and isinstance(outputs, tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        raise RunError(
            f"curvature: the model returned {type(outputs).__name__} without logits; use a model with "
            "a head (AutoModelForCausalLM, ...), or wrap it in a module that returns the logits"
        )
    return found
