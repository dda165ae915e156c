"""Detect models whose forward pass bypasses the parameters that we differentiate."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Shaped
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from hessblocks.errors import ArgumentError

TRUSTED = ("hessblocks.", "torch.distributed.")
"""Packages whose Functions have a derivative of their derivative, or merely move tensors."""


@dataclass(frozen=True, kw_only=True)
class GraphWalk:
    """Leaves of a graph, and the foreign Functions on the way to them."""

    leaves: frozenset[int]
    """Identities of the tensors at which the graph ends."""
    functions: tuple[str, ...]
    """Names of the `torch.autograd.Function`s on the way that are not ours, each once."""


def walk_graph(tensors: Iterable[Shaped[Tensor, "..."] | None]) -> GraphWalk:
    """Walk a graph once, from its outputs to its leaves.

    Args:
        tensors: where it begins; those without a graph are leaves themselves.

    Returns:
        Its leaves and foreign Functions.
    """
    roots = [t for t in tensors if t is not None and t.requires_grad]
    waiting = [t.grad_fn for t in roots if t.grad_fn is not None]
    leaves = {id(t) for t in roots if t.grad_fn is None}
    functions: dict[str, None] = {}
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves.add(id(leaf))
        if name := _foreign(node):
            functions[name] = None
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        waiting += new
    return GraphWalk(leaves=frozenset(leaves), functions=tuple(functions))


def _foreign(node: Node) -> str | None:
    """Name somebody else's Function, in Python or in C++; None for torch's own."""
    if isinstance(node, BackwardCFunction):
        kind = node._forward_cls
        return None if kind.__module__.startswith(TRUSTED) else kind.__qualname__
    return node.name() if type(node).__name__ == "CppFunction" else None


def check_bypass(model: nn.Module, reached: GraphWalk) -> None:
    """Refuse a forward pass that bypasses its parameters; derivatives would wrongly be zero.

    Args:
        model: whose parameters others were put in the place of.
        reached: from its logits.

    Raises:
        ArgumentError: the logits have no graph, or it ends at a parameter of the model itself.
    """
    if not reached.leaves:
        raise ArgumentError(
            f"model: autograd finds no way from the logits of {type(model).__name__} to any "
            "trainable parameter; its forward pass must not run under torch.no_grad() or "
            "torch.inference_mode(), detach or round its outputs, or compute with quantised weights"
        )
    named = model.named_parameters()
    found = next((name for name, own in named if id(own) in reached.leaves), None)
    if found is not None:
        raise ArgumentError(
            f"model: its forward pass reaches {found!r} by another way than the attributes of its "
            "modules (a list of tensors, a module in a list of Python), and that way would be left "
            "out of every derivative; read the parameter from its module in forward, and hold "
            "modules in an nn.ModuleList"
        )
