"""Call a model, or a function of (params, inputs), and find the logits in its outputs."""

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature.losses import Batch, check_packing, given_labels, named_errors
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import ArgumentError, RunError

ROUTER_LOSSES = ("router_aux_loss_coef", "router_z_loss_coef")
"""Names of the router loss's weight in transformers' configurations of mixtures of experts."""


class AuxiliaryLossWarning(UserWarning):
    """Warning that the model adds an auxiliary loss, which the curvature leaves out."""


class ForwardCall:
    """Calls a model with a batch, according to the signature of `forward`."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        """Read the signature.

        Args:
            model: any module.
            loss: loss of the problem. With `seq2seq`, the decoder's inputs are the shifted labels,
                unless the batch has them. If the loss is that of the model's task, a warning names
                an auxiliary loss that is left out.
        """
        self._model, self._shift_labels = model, loss == "seq2seq"
        self._accepted = inspect.signature(model.forward).parameters
        self._named_cache = "use_cache" in self._accepted
        passes_on = hasattr(getattr(model, "config", None), "use_cache")
        self._inner_cache = passes_on and _takes_any(self._accepted)
        self._own_loss, self._first = isinstance(loss, str), True
        self._callable_loss = callable(loss) and not isinstance(loss, nn.Module)

    def __call__(self, batch: Batch) -> Any:
        """Call the model with a batch.

        Returns:
            The model's outputs.

        Raises:
            ArgumentError: labels cannot be shifted for its decoder, or packed sequences are given
                with a cache.
            RunError: the model cannot be called with the batch.

        Warns:
            AuxiliaryLossWarning: the model adds an auxiliary loss; once.
            UserWarning: the model may ignore an entry of the batch; once.
        """
        takes_mapping = self._takes_mapping(batch.keywords)
        if self._first and not takes_mapping:
            self._first = False
            self._warn_of_unknown(batch.keywords)
        keywords: dict[str, Any] = {}
        if not takes_mapping:
            keywords = {**batch.keywords, **self._decoder_inputs(batch)}
            packed = check_packing(batch)
            if self._named_cache or (self._inner_cache and packed):
                keywords["use_cache"] = False
        arguments = (batch.keywords,) if takes_mapping else batch.arguments
        subject = f"model: the forward pass of batch {batch.number} (counted from 0)"
        with named_errors(subject), readable_errors():
            outputs = self._model(*arguments, **keywords)
        if self._own_loss:
            self._own_loss = False
            _warn_of_auxiliary_losses(self._model, outputs)
        return outputs

    def _takes_mapping(self, names: Mapping[str, object]) -> bool:
        """Tell whether `forward` takes the mapping as its only argument, not as keywords."""
        needed = [p for p in self._accepted.values() if p.default is p.empty]
        single = len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
        return single and bool(names) and not names.keys() & self._accepted.keys()

    def _warn_of_unknown(self, names: Mapping[str, object]) -> None:
        """Warn of tensors that only `**kwargs` accepts, if `forward` names another entry.

        A callable loss may read such entries; then warn only of likely misspellings.
        """
        if not names.keys() & self._accepted.keys() or not _takes_any(self._accepted):
            return
        for name, value in names.items():
            if name in self._accepted or not (isinstance(value, Tensor) and value.ndim):
                continue
            near = difflib.get_close_matches(name, self._accepted, n=1, cutoff=0.9)
            if near or not self._callable_loss:
                warnings.warn(
                    f"batches: {name!r} is not an argument of the forward pass of "
                    f"{type(self._model).__name__}, and may be ignored"
                    + (f"; did you mean {near[0]!r}?" if near else ""),
                    stacklevel=4,
                )

    def _decoder_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return `decoder_input_ids` made from the labels, if the decoder needs them."""
        if not self._shift_labels or "decoder_input_ids" in batch.keywords:
            return {}
        shift = getattr(self._model, "prepare_decoder_input_ids_from_labels", None)
        shifted = (shift or partial(_shifted, self._model))(labels=given_labels(batch))
        if shifted is None:
            raise ArgumentError(
                "loss: seq2seq expects an encoder-decoder of transformers, got "
                f"{type(self._model).__name__}; give decoder_input_ids in the batches"
            )
        return {"decoder_input_ids": shifted}


def _takes_any(accepted: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in accepted.values())


def _shifted(model: nn.Module, labels: Tensor) -> Tensor | None:
    """Shift labels right by one, for an encoder-decoder without its own method (Whisper).

    Returns:
        The decoder's inputs; None if the configuration has no start or padding token.
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
    """Warn of an auxiliary loss, such as the router loss of a mixture of experts."""
    named = dict(outputs) if isinstance(outputs, Mapping) else {}
    names = [name for name, value in named.items() if name.endswith("_loss") and value is not None]
    config = getattr(model, "config", None)
    parts = [config, getattr(config, "text_config", None)]
    weights = [(part, name) for part in parts for name in ROUTER_LOSSES if hasattr(part, name)]
    if weights:  # which may be 0
        names = [
            name
            for part, name in weights
            if getattr(part, "output_router_logits", False) and getattr(part, name)
        ]
    if names:
        warnings.warn(
            f"model: {type(model).__name__} adds {' and '.join(sorted({*names}))} to its loss, "
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
        RunError: the outputs have no logits.
    """
    if isinstance(outputs, Tensor):
        return outputs
    logits = getattr(outputs, "logits", None)
    if isinstance(outputs, Mapping):
        logits = outputs.get("logits")
    if logits is None and isinstance(outputs, tuple) and outputs:
        logits = outputs[0]
    if not isinstance(logits, Tensor):
        raise RunError(
            f"curvature: the model returned {type(outputs).__name__} without logits; use a model "
            "with a head (AutoModelForCausalLM, ...), or wrap it in a module that returns the "
            "logits"
        )
    return logits


Params = Mapping[str, Float[Tensor, "..."]] | Sequence[Float[Tensor, "..."]]
"""Parameters by name, or in a list, whose names are 0, 1, …"""


class FunctionModel(nn.Module):
    """Module with the parameters of a function, which it calls with them.

    The parameters share memory with the given tensors.
    """

    def __init__(self, function: Callable[..., Any], params: Params) -> None:
        """Register each tensor under its name.

        Raises:
            ArgumentError: a value is not a tensor of real numbers, or a name not a string.
        """
        super().__init__()
        self._function, self._named = function, isinstance(params, Mapping)
        parameters: dict[int, nn.Parameter] = {}  # a tensor given under two names is one parameter
        named = params if isinstance(params, Mapping) else {str(n): t for n, t in enumerate(params)}
        for name, tensor in named.items():
            real = isinstance(tensor, Tensor) and tensor.is_floating_point()
            if not real or not isinstance(name, str):
                raise ArgumentError(
                    f"params: expected tensors of real numbers by name, got {name!r}: "
                    f"{tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}"
                )
            # `register_parameter` refuses names with dots
            self._parameters[name] = parameters.setdefault(id(tensor), _parameter(tensor))

    def get_submodule(self, target: str) -> nn.Module:
        """Return the owner of a parameter, whose name may hold dots."""
        return self

    def forward(self, inputs: Any) -> Any:
        """Call the function with the parameters, in a mapping or list as the caller gave them."""
        parameters = dict(self._parameters)
        return self._function(parameters if self._named else list(parameters.values()), inputs)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach())


def as_module(model: nn.Module | Callable[..., Any], params: Params | None) -> nn.Module:
    """Wrap a function and its parameters in a module; return a module unchanged.

    Args:
        model: a module, or a function of (params, inputs).
        params: parameters of the function; None for a module.

    Returns:
        A module.

    Raises:
        ArgumentError: `model` is neither, a function without `params`, a module with `params`, or a
            module of torch.jit.
    """
    if isinstance(model, str | os.PathLike):
        loads = f"`model, tokenizer = hb.load({os.fspath(model)!r})` loads it"
        raise ArgumentError(f"model: expected a module, got a name; {loads}")
    if isinstance(model, nn.Module) and params is None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ArgumentError(
                "model: compiled by torch.jit, which hides its operations; give the module itself"
            )
        return model
    if isinstance(model, nn.Module) or not callable(model) or not params:
        raise ArgumentError(
            "model: expected a module, or a function of (params, inputs) with params=, a dict or "
            f"list of tensors; got {type(model).__name__} {'with' if params else 'without'} params"
        )
    return FunctionModel(model, params)
