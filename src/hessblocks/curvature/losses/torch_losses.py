"""Convert loss modules of torch, with all their options, to functions of the logits.

Class weights and `ignore_index` change the denominator of the mean; `reduction="sum"` has none.
Letters: B rows of a batch.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.conventions import IGNORED
from hessblocks.curvature.losses.batch_loss import BatchLoss, Differentiated
from hessblocks.curvature.losses.batches import Batch
from hessblocks.curvature.losses.row_losses import CrossEntropy, causal_targets, given_labels
from hessblocks.errors import ArgumentError, unknown_name

KNOWN: dict[type[nn.Module], Callable[..., Float[Tensor, ""]]] = {
    nn.CrossEntropyLoss: F.cross_entropy,
    nn.MSELoss: F.mse_loss,
    nn.NLLLoss: F.nll_loss,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.BCELoss: F.binary_cross_entropy,
    nn.L1Loss: F.l1_loss,
    nn.SmoothL1Loss: F.smooth_l1_loss,
    nn.HuberLoss: F.huber_loss,
    nn.PoissonNLLLoss: F.poisson_nll_loss,
    nn.SoftMarginLoss: F.soft_margin_loss,
}
"""Loss modules, with their functional forms; the mean is over (weighted) labels or entries."""

OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
"""Losses whose labels are classes."""


def torch_loss(module: Any) -> Callable[[Batch], BatchLoss]:
    """Make a batch's loss from a loss module of torch.

    Args:
        module: an instance of a class in `KNOWN`, with any options but `reduction="none"`.

    Returns:
        Function of a batch with labels that returns its loss, in closed form for cross-entropy with
        class indices, no class weights and no label smoothing.

    Raises:
        ArgumentError: the class is not in `KNOWN`, or `reduction` is "none".
    """
    if type(module) not in KNOWN:
        raise ArgumentError(
            f"loss: {type(module).__name__} is unknown; known: "
            f"{', '.join(k.__name__ for k in KNOWN)}, or a function of outputs and batch that "
            "returns one loss for each valid row"
        )
    if module.reduction not in ("mean", "sum"):
        raise ArgumentError(f"loss: expected reduction='mean' or 'sum', got {module.reduction!r}")

    def loss_of(batch: Batch) -> BatchLoss:
        labels = given_labels(batch)
        plain = (  # checked for each batch, since the caller may change a module's options
            isinstance(module, nn.CrossEntropyLoss)
            and module.weight is None
            and module.label_smoothing == 0
        )
        if plain and labels.ndim == 1 and not labels.is_floating_point():
            if module.ignore_index != IGNORED and bool((labels == IGNORED).any()):
                raise ArgumentError(
                    f"labels: {IGNORED} is no class, and ignore_index is {module.ignore_index}"
                )
            return CrossEntropy(labels.masked_fill(labels == module.ignore_index, IGNORED))
        return _differentiated(module, labels)

    return loss_of


def _differentiated(module: Any, labels: Tensor, *, column: bool = False) -> Differentiated:
    """Sum a module's losses; with `column`, logits may have an extra last axis of length 1."""
    module = copy.deepcopy(module).to(labels.device)
    module.reduction = "sum"
    of_classes = isinstance(module, OF_CLASSES)

    def losses(logits: Tensor) -> Tensor:
        targets = labels
        if not of_classes or labels.is_floating_point():
            targets = labels.to(logits.dtype)
        if column and (logits.ndim, logits.shape[-1]) == (labels.ndim + 1, 1):
            targets = targets[..., None]
        if not of_classes and targets.shape != logits.shape:
            raise ArgumentError(
                f"labels: expected the shape of the logits, {tuple(logits.shape)}, got "
                f"{tuple(labels.shape)}"
            )
        for name in () if of_classes else ("weight", "pos_weight"):
            _check_rows(
                f"{type(module).__name__}({name}=...)", getattr(module, name, None), targets
            )
        try:
            total: Tensor = module.to(logits.dtype)(logits, targets)
        except (RuntimeError, IndexError, ValueError) as error:
            raise ArgumentError(
                f"labels: {type(module).__name__} does not take labels {tuple(labels.shape)} with "
                f"logits {tuple(logits.shape)} ({str(error).splitlines()[0]}); its classes stand "
                "on axis 1, those of loss='classification' and 'causal-lm' on the last"
            ) from error
        return total

    def count() -> float:
        if not of_classes:
            return labels.numel()
        if labels.is_floating_point():
            return labels.numel() // labels.shape[min(1, labels.ndim - 1)]
        counted = labels[labels != module.ignore_index]
        return counted.numel() if module.weight is None else float(module.weight[counted].sum())

    return Differentiated(losses, count, classes=of_classes, module=module)


def _check_rows(name: str, weight: Tensor | None, labels: Tensor) -> None:
    """Check that a weight has no axis for rows, or one of length 1 or of the batch's rows."""
    if weight is None or weight.ndim < labels.ndim:
        return
    rows, length = len(labels), weight.shape[weight.ndim - labels.ndim]
    if weight.ndim > labels.ndim or length not in (1, rows):
        raise ArgumentError(
            f"loss: {name} of shape {tuple(weight.shape)} has a row for each of {length} examples, "
            f"but batches, and the pieces they are cut into, have others, such as {rows}; give a "
            "callable that takes weights from the batch"
        )


LOSSES: dict[str, Callable[[Batch], BatchLoss]] = {
    "causal-lm": lambda batch: CrossEntropy(causal_targets(batch)),
    "masked-lm": lambda batch: CrossEntropy(given_labels(batch)),
    "seq2seq": lambda batch: CrossEntropy(given_labels(batch)),
    "classification": lambda batch: CrossEntropy(given_labels(batch)),
    "regression": lambda batch: _differentiated(nn.MSELoss(), given_labels(batch), column=True),
}
"""For each loss name, the function that makes a batch's loss."""


def is_convex(loss: Any) -> bool:
    """Tell whether a loss is known to be convex in the logits.

    Losses by name are convex, and so are loss modules of torch without negative weights.

    Args:
        loss: the loss of a `Problem`; functions of torch as modules.

    Returns:
        False for a callable, of which nothing is known.
    """
    if not isinstance(loss, nn.Module):
        return isinstance(loss, str)
    weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    return all(weight is None or bool((weight >= 0).all()) for weight in weights)


TASKS = {"ForMaskedLM": "masked-lm", "Classification": "classification"}
"""Suffix of a transformers class name → its loss, for tasks other than next-token prediction."""


def loss_of(loss: Any) -> tuple[Any, Callable[[Batch], BatchLoss] | None]:
    """Find the function that makes a batch's loss.

    Args:
        loss: the loss argument of `Problem`.

    Returns:
        The loss, with functions of torch replaced by their modules; and the function that makes a
        batch's loss, None for a callable, whose loss needs the model's outputs.

    Raises:
        ArgumentError: neither a known loss nor a callable.
    """
    of_parts = isinstance(loss, functools.partial)
    function, options = (loss.func, loss.keywords) if of_parts else (loss, {})
    if kind := next((kind for kind, named in KNOWN.items() if named is function), None):
        given = inspect.signature(kind).parameters
        if (of_parts and loss.args) or not options.keys() <= given.keys():
            raise ArgumentError(
                f"loss: functools.partial of {function.__name__} takes options by name: "
                f"{', '.join(given)}"
            )
        loss = kind(**options)
    if isinstance(loss, nn.Module):
        return loss, torch_loss(loss)
    if isinstance(loss, type):
        raise ArgumentError(f"loss: expected an instance, {loss.__name__}(), got the class")
    if not callable(loss) and loss not in [*LOSSES]:  # of any type, hashable or not
        raise unknown_name("loss", str(loss), [*LOSSES, "a callable(outputs, batch)"])
    return loss, None if callable(loss) else LOSSES[loss]


def check_task(model: nn.Module, loss: Any) -> None:
    """Refuse the next-token loss for a model of transformers with another task.

    Args:
        model: model of transformers, or a wrapper of one that holds most of its parameters.
        loss: the loss argument of `Problem`.

    Raises:
        ArgumentError: the loss is `causal-lm`, and the model's class has another task.
    """
    inner = _worker(model)
    kind, config = type(inner).__name__, getattr(inner, "config", None)
    named = (name for end, name in TASKS.items() if kind.endswith(end))
    task = "seq2seq" if getattr(config, "is_encoder_decoder", False) else next(named, None)
    if loss == "causal-lm" and task:
        raise ArgumentError(
            f"loss: causal-lm predicts the next token, which is not the task of {kind}; give "
            f"loss={task!r}, or a callable"
        )


def _worker(model: nn.Module) -> nn.Module:
    """Unwrap the model of transformers inside (DataParallel, a user's wrapper)."""

    def size(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    kinds = (m for m in model.modules() if hasattr(getattr(m, "config", None), "model_type"))
    return next((k for k in kinds if k is model or 2 * size(k) > size(model)), model)
