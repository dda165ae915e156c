"""Whether the logits depend on the tensors that were put in the place of the parameters, and on these alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.autograd.graph import Node

from hessblocks.curvature.losses import Readout
from hessblocks.errors import ArgumentError


def check_reached(model: nn.Module, readout: Readout) -> None:
    """Refuse a forward pass whose derivatives would be zero without being so.

    Args:
        model: whose parameters others were put in the place of.
        readout: its logits with their graph.

    Raises:
        ArgumentError: the logits have no graph, or it ends at a parameter of the model itself.
    """
    if not readout.requires_grad:
        raise ArgumentError(
            f"model: autograd finds no way from the logits of {type(model).__name__} to any trainable parameter; "
            "its forward pass must not run under torch.no_grad() or torch.inference_mode(), detach or round its "
            "outputs, or compute with quantised weights"
        )
    leaves = {id(leaf) for leaf in _leaves(readout)}
    found = next((name for name, own in model.named_parameters() if id(own) in leaves), None)
    if found is not None:
        raise ArgumentError(
            f"model: its forward pass reaches {found!r} by another way than the attributes of its modules (a list of "
            "tensors, a module in a list of Python), and that way would be left out of every derivative; read the "
            "parameter from its module in forward, and hold modules in an nn.ModuleList"
        )


def _leaves(readout: Readout) -> Iterator[Tensor]:
    """The tensors at which the graph of the logits ends."""
    waiting: list[Node] = []
    for tensor in readout.inputs:
        if tensor is not None and tensor.requires_grad:
            if tensor.grad_fn is None:
                yield tensor
            else:
                waiting.append(tensor.grad_fn)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        waiting += new
