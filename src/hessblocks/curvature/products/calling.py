"""Call a model with a batch, and find the logits in what it returns."""

import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature.losses import Batch, given_labels
from hessblocks.errors import ArgumentError, RunError

ROUTER_LOSSES = ("router_aux_loss_coef", "router_z_loss_coef")
"""Weights of the losses of mixtures of experts, as configurations of transformers name them."""


class AuxiliaryLossWarning(UserWarning):
    """Warning that a model has a loss beside that of its logits, which is not measured."""


class Call:
    """Call a model by the signature of its forward pass."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        """Read the signature.

        Args:
            model: any module.
            loss: loss of the problem. With `seq2seq` a decoder reads the labels one place further
                on, unless its inputs are given; where the loss is that of the model's task, a part
                which is left out is named.
        """
        self._model, self._shift_labels = model, loss == "seq2seq"
        self._accepted = inspect.signature(model.forward).parameters
        self._extra = {"use_cache": False} if "use_cache" in self._accepted else {}
        self._own_loss = isinstance(loss, str)

    def __call__(self, batch: Batch) -> Any:
        """Call the model with a batch.

        Returns:
            What it returns.

        Raises:
            ArgumentError: labels cannot be shifted for its decoder.

        Warns:
            AuxiliaryLossWarning: the model has a loss beside that of its logits; once.
        """
        if self._takes_mapping(batch.keywords):
            outputs = self._model(batch.keywords)
        else:
            keywords = {**batch.keywords, **self._decoder_inputs(batch), **self._extra}
            outputs = self._model(*batch.arguments, **keywords)
        if self._own_loss:
            self._own_loss = False
            _warn_of_auxiliary_losses(self._model, outputs)
        return outputs

    def _takes_mapping(self, names: Mapping[str, object]) -> bool:
        """Tell whether a mapping goes in whole: one argument, with none of its names."""
        needed = [p for p in self._accepted.values() if p.default is p.empty]
        single = len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
        return single and bool(names) and not names.keys() & self._accepted.keys()

    def _decoder_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Make the inputs of an encoder-decoder's decoder."""
        if not self._shift_labels or "decoder_input_ids" in batch.keywords:
            return {}
        own = getattr(self._model, "prepare_decoder_input_ids_from_labels", None)
        shifted = (own or partial(_shifted, self._model))(labels=given_labels(batch))
        if shifted is None:
            raise ArgumentError(
                "loss: seq2seq expects an encoder-decoder of transformers, got "
                f"{type(self._model).__name__}; give decoder_input_ids in the batches"
            )
        return {"decoder_input_ids": shifted}


def _shifted(model: nn.Module, labels: Tensor) -> Tensor | None:
    """Shift labels by one place, as an encoder-decoder without its own method (Whisper) does.

    Returns:
        None where the configuration does not say what a text begins with and is padded by.
    """
    config = getattr(model, "config", None)
    start, padding = (
        getattr(config, name, None) for name in ("decoder_start_token_id", "pad_token_id")
    )
    if not getattr(config, "is_encoder_decoder", False) or start is None or padding is None:
        return None
    shifted = labels.roll(1, dims=-1).masked_fill(labels.roll(1, dims=-1) == IGNORED, padding)
    shifted[..., 0] = start
    return shifted


def _warn_of_auxiliary_losses(model: nn.Module, outputs: Any) -> None:
    """Name a loss beside that of the logits, such as the router's of a mixture of experts."""
    named = dict(outputs) if isinstance(outputs, Mapping) else {}
    found = [name for name, value in named.items() if name.endswith("_loss") and value is not None]
    config = getattr(model, "config", None)
    parts = [config, getattr(config, "text_config", None)]
    weights = [(part, name) for part in parts for name in ROUTER_LOSSES if hasattr(part, name)]
    if weights:  # which may be 0
        found = [
            name
            for part, name in weights
            if getattr(part, "output_router_logits", False) and getattr(part, name)
        ]
    if found:
        warnings.warn(
            f"model: {type(model).__name__} adds {' and '.join(sorted({*found}))} to its loss, "
            "which is left out: what is measured is the loss of the logits alone; a callable loss "
            "can add it",
            AuxiliaryLossWarning,
            stacklevel=4,
        )


def logits_of(outputs: Any) -> Float[Tensor, "... classes"]:
    """Find the logits: a tensor, a field or key `logits`, or the first of a tuple.

    Args:
        outputs: outputs of the model.

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
            f"curvature: the model returned {type(outputs).__name__} without logits; use a model "
            "with a head (AutoModelForCausalLM, ...), or wrap it in a module that returns the "
            "logits"
        )
    return found
