"""Record the calls of a model's layers in one forward pass, by hooks."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from hessblocks.errors import ArgumentError

Inputs = Mapping[str, Shaped[Tensor, "sequences ..."]]


@dataclass(frozen=True, kw_only=True)
class ModuleCall:
    """Call of a module in a forward pass, with its output."""

    module: nn.Module
    """Module that was called."""
    arguments: tuple[Any, ...]
    """Positional arguments; the first has the vectors (sequences, tokens, width)."""
    keywords: dict[str, Any]
    """Keyword arguments."""
    output: Float[Tensor, "sequences tokens outputs"]
    """First output of the module."""

    @property
    def x(self) -> Float[Tensor, "sequences tokens width"]:
        """Input vectors."""
        first: Tensor = self.arguments[0]
        return first

    def again(
        self, x: Float[Tensor, "sequences tokens width"]
    ) -> Float[Tensor, "sequences tokens outputs"]:
        """Call the module with other vectors; return the first output."""
        return _first(self.module(x, *self.arguments[1:], **self.keywords))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: its longest list of modules.

    Returns:
        The layers from the first to the last.

    Raises:
        ArgumentError: the model has none.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists or not len(longest := max(lists, key=len)):
        raise ArgumentError(
            f"model: {type(model).__name__} has no list of layers (torch.nn.ModuleList) to look at"
        )
    return list(longest)


def calls(
    model: nn.Module, modules: list[nn.Module], batch: Inputs
) -> tuple[dict[nn.Module, ModuleCall], Any]:
    """Run the model once.

    Args:
        model: model, called with `batch` as keyword arguments.
        modules: modules of the model; each is called once.
        batch: keyword arguments of the model.

    Returns:
        The call of each module, and the model's output.
    """
    recorded: dict[nn.Module, ModuleCall] = {}

    def note(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        keywords = dict(keywords)
        if not arguments:  # some models of transformers pass keywords
            arguments = (keywords.pop("hidden_states"),)
        recorded[module] = ModuleCall(
            module=module, arguments=arguments, keywords=keywords, output=_first(output)
        )

    with ExitStack() as stack:
        for module in modules:
            handle = module.register_forward_hook(note, with_kwargs=True)
            stack.callback(handle.remove)
        output = model(**batch)
    return recorded, output


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Disable dropout and activation checkpointing; restore every module's mode on exit."""
    modes = {module: module.training for module in model.modules()}
    model.eval()  # gradient checkpointing recomputes in training mode only
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def real_tokens(batch: Inputs) -> Bool[Tensor, "sequences tokens"]:
    """Mark unpadded tokens as True, (sequences, tokens)."""
    if "attention_mask" in batch:
        return batch["attention_mask"].bool()
    inputs = batch["input_ids"]
    return torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)


def _first(output: Any) -> Tensor:
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor
