"""Detect models whose forward pass bypasses the parameters that we differentiate."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Shaped
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from hessblocks.errors import ArgumentError

TRUSTED = ("hessblocks.", "torch.distributed.")
"""Packages whose autograd Functions can be differentiated twice, or only move tensors."""


@dataclass(frozen=True, kw_only=True)
class GraphWalk:
    """Leaves of a graph, and the users' autograd Functions in it."""

    leaves: frozenset[int]
    """`id` of each tensor at which the graph ends."""
    functions: tuple[str, ...]
    """Names of the `torch.autograd.Function`s in the graph that are not ours, each once."""


def walk_graph(tensors: Iterable[Shaped[Tensor, "..."] | None]) -> GraphWalk:
    """Walk a graph once, from its outputs to its leaves.

    Args:
        tensors: outputs of the graph; a tensor without a graph counts as a leaf.

    Returns:
        The leaves and the users' Functions.
    """
    roots = [t for t in tensors if t is not None and t.requires_grad]
    waiting = [t.grad_fn for t in roots if t.grad_fn is not None]
    leaves = {id(t) for t in roots if t.grad_fn is None}
    functions: dict[str, None] = {}
    visited = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves.add(id(leaf))
        if name := _foreign(node):
            functions[name] = None
        new = {following for following, _ in node.next_functions if following is not None} - visited
        visited |= new
        waiting += new
    return GraphWalk(leaves=frozenset(leaves), functions=tuple(functions))


def _foreign(node: Node) -> str | None:
    """Return the name of a user's autograd Function, in Python or C++; None for other nodes."""
    if isinstance(node, BackwardCFunction):
        kind = node._forward_cls
        return None if kind.__module__.startswith(TRUSTED) else kind.__qualname__
    return node.name() if type(node).__name__ == "CppFunction" else None


def check_bypass(model: nn.Module, reached: GraphWalk) -> None:
    """Check that the forward pass used the tensors that replace the model's parameters.

    Otherwise derivatives would wrongly be zero.

    Args:
        model: model whose parameters were replaced.
        reached: graph walk from its logits.

    Raises:
        ArgumentError: the logits have no graph, or the graph ends at an original parameter.
    """
    if not reached.leaves:
        raise ArgumentError(
            f"model: autograd finds no way from the logits of {type(model).__name__} to any "
            "trainable parameter; its forward pass must not run under torch.no_grad() or "
            "torch.inference_mode(), detach or round its outputs, or compute with quantised weights"
        )
    named = model.named_parameters()
    name = next((name for name, parameter in named if id(parameter) in reached.leaves), None)
    if name is not None:
        raise ArgumentError(
            f"model: its forward pass reaches {name!r} by another way than the attributes of its "
            "modules (a list of tensors, a module in a list of Python), and that way would be left "
            "out of every derivative; read the parameter from its module in forward, and hold "
            "modules in an nn.ModuleList"
        )
