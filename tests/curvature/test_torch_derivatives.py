"""Second and third derivatives that torch has wrong or lacks, and our forms in their place, against
differences of the first and second.

Once torch is mended the first test says so, and the form in single steps
(`hessblocks.curvature.closed.swap`) can go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.closed.swap import CORRECTED, spelled
from hessblocks.curvature.last_layer.last_attention import head_norms
from hessblocks.curvature.last_layer.supported import undisturbed

STEP, BOUND = 2e-4, 1e-6
Operation = tuple[Callable[..., Any], list[Tensor]]


def draw(*shapes: Sequence[int]) -> list[Tensor]:
    """The same numbers for the same shapes, off 0 where activations have their kinks."""
    generator = torch.Generator().manual_seed(5)
    found = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x + 0.05 * x.sign() for x in found]


def positive(*shape: int) -> Tensor:
    return draw(shape)[0].abs() + 0.2


X, ROWS, IMAGE = (4, 5), (2, 3, 6), (2, 3, 6, 6)
CLASS = torch.tensor([0, 3, 1, 4])
IDS = torch.tensor([[0, 2], [1, 1], [3, 0]])
OPERATIONS: dict[str, Operation] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), draw(X, (5,), (5,))),
    "layer norm, bare": (lambda x: F.layer_norm(x, (5,)), draw(X)),
    "layer norm over two axes": (
        lambda x, w, b: F.layer_norm(x, (3, 6), w, b),
        draw(ROWS, (3, 6), (3, 6)),
    ),
    "RMS norm": (lambda x, w: F.rms_norm(x, (5,), w), draw(X, (5,))),
    "batch norm, running": (
        lambda x, w, b: F.batch_norm(x, draw((5,))[0], positive(5), w, b),
        draw(X, (5,), (5,)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        draw((6, 3), (3,), (3,)),
    ),
    "batch norm of images": (lambda x: F.batch_norm(x, None, None, training=True), draw(IMAGE)),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        draw(ROWS, (3,), (3,)),
    ),
    "weight norm, rows": (lambda v, g: torch._weight_norm(v, g, 0), draw((4, 3), (4, 1))),
    "weight norm, columns": (lambda v, g: torch._weight_norm(v, g, 1), draw((4, 3), (1, 3))),
    "weight norm, whole": (lambda v, g: torch._weight_norm(v, g, -1), draw((4, 3), (1, 1))),
    "linear cross-entropy": (lambda x, w: F.linear_cross_entropy(x, w, CLASS), draw(X, (6, 5))),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), draw(X)),
    "hardsigmoid": (F.hardsigmoid, draw(X)),
    "multi-margin": (lambda x: F.multi_margin_loss(x, CLASS), draw(X)),
    "distances": (torch.cdist, draw(X, (3, 5))),
    "pairs of distances": (F.pdist, draw(X)),
    "bags": (lambda w: F.embedding_bag(IDS, w, mode="mean").square(), draw(X)),
    "weighted bags": (
        lambda w, s: F.embedding_bag(IDS, w, mode="sum", per_sample_weights=s).square(),
        draw(X, (3, 2)),
    ),
}

THIRD = ["layer norm", "layer norm, bare", "layer norm over two axes", "batch norm"]
THIRD += ["batch norm of images", "instance norm"]
WEIGHT_NORMS = ["weight norm, rows", "weight norm, columns"]
WRONG = {(name, 3) for name in THIRD} | {(name, order) for name in WEIGHT_NORMS for order in (2, 3)}
"""Of torch 2.13, with the order of the derivative."""
WRONG.add(("logcumsumexp", 3))
MISSING = {
    "hardsigmoid",
    "distances",
    "pairs of distances",
    "bags",
    "weighted bags",
    "multi-margin",
}
"""torch says that it has no second derivative, and so does `hb.Hessian`, but for what is
`CORRECTED`."""


def derivative(operation: Operation, inputs: list[Tensor], order: int) -> list[Tensor]:
    """Derivatives by the inputs of ⟨operation, c⟩, contracted order − 1 times with fixed v."""
    generator = torch.Generator().manual_seed(11)
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = operation[0](*inputs)
    weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    vectors = directions(inputs)
    value = (outputs * weights).sum()
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    for number in range(order):
        if not value.requires_grad:
            return [torch.zeros_like(x) for x in inputs]
        found = torch.autograd.grad(value, inputs, create_graph=number < order - 1, **options)
        value = sum((f * v).sum() for f, v in zip(found, vectors, strict=True))
    return list(found)


def directions(inputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(12)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in inputs]


def error(operation: Operation, order: int) -> float:
    """The distance from central differences, of the fourth order, of one derivative less."""
    inputs = operation[1]
    vectors = directions(inputs)

    def at(step: float) -> Tensor:
        moved = [x + step * v for x, v in zip(inputs, vectors, strict=True)]
        return torch.cat([d.flatten() for d in derivative(operation, moved, order - 1)])

    found = torch.cat([d.flatten() for d in derivative(operation, inputs, order)])
    coarse, fine = ((at(s) - at(-s)) / (2 * s) for s in (STEP, STEP / 2))
    expected = (4 * fine - coarse) / 3
    scale = expected.norm() + 1e-3 * at(0).norm() + 1e-9
    return float((found - expected).norm() / scale)


@pytest.mark.parametrize("name", OPERATIONS)
def test_torch_is_wrong_where_the_list_says_so_and_nowhere_else(name: str) -> None:
    for order in (2, 3):
        if name in MISSING:
            with pytest.raises(RuntimeError):
                error(OPERATIONS[name], order)
        else:
            right = error(OPERATIONS[name], order) < BOUND
            assert right == ((name, order) not in WRONG), f"derivative {order}"


@pytest.mark.parametrize(
    "name", [*THIRD, *WEIGHT_NORMS, "weight norm, whole", "hardsigmoid", "RMS norm"]
)
def test_what_is_wrong_in_torch_is_right_in_single_steps(name: str) -> None:
    with spelled():
        for order in (2, 3):
            assert error(OPERATIONS[name], order) < BOUND


def test_cross_entropy_in_chunks_has_no_second_derivative_but_ours() -> None:
    inputs = draw(X, (6, 5))
    chunked: Operation = (
        lambda x, w: F.linear_cross_entropy(
            x, w, CLASS, options=nn.LinearCrossEntropyOptions(batch_chunk_size=2)
        ),
        inputs,
    )
    with spelled():
        assert error(chunked, 2) < BOUND
    assert error(chunked, 2) > 0.1


class Calls(torch.overrides.TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func)
        return func(*args, **(kwargs or {}))


def test_every_corrected_function_stands_in_a_test() -> None:
    with Calls() as calls:
        for function, inputs in OPERATIONS.values():
            function(*inputs)
    tested_elsewhere = {torch._grouped_mm}  # tests/curvature/test_composition.py
    assert set(CORRECTED) - calls.seen == tested_elsewhere


def test_closed_forms_meet_no_kernel_of_rms_norm() -> None:
    """That of CUDA has no batching rule: vmap warns, and takes vector by vector."""
    model, x = nn.RMSNorm(4), torch.ones(2, 4)
    norm = head_norms(x, query=model)["query_norm"]
    with Calls() as calls:
        with undisturbed(model):
            model(x)
        norm.slope(x)
    assert F.rms_norm not in calls.seen
    assert torch.Tensor.rsqrt in calls.seen
