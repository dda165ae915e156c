"""Kernels and bytes of one compiled layer, forward and backward, without a GPU.

Run `python -m benchmarks layer_kernels`. `torch.compile` writes the layer's code for a CPU, from
which launches are counted: kernels that it fuses, and calls of others (products, attention, running
sums). No fused kernel is built; each counts the bytes of the tensors that it is given, weights and
their gradients apart, which do not grow with the tokens. The layer is that of the published blocks,
18 x 768, in bf16 (autocast), on 4 x 128 tokens. A GPU's compiler also fuses running sums, which
count as a kernel of their own here, and are taken off in `on a GPU`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.blocks import Context, shaped

ROWS, TOKENS, WIDTH, HEADS = 4, 128, 768, 12
SIDES = {
    "pre-ln": ("pre-ln", False),
    "sas, sums in chunks": ("sas", False),
    "sas": ("sas", True),
    "sas-p, sums in chunks": ("sas-p", False),
    "sas-p": ("sas-p", True),
}
"""Presets, and whether mixing is written for one kernel."""
OTHERS = {"cumsum": 8, "attention_for_cpu": 8, "attention_for_cpu_backward": 16}
"""Bytes a token and entry of kernels that are called: 2 of fp32; 4 and 8 tensors of bf16."""
SUM = 16
"""Bytes a token and entry that a running sum inside of a kernel saves: 4 of fp32."""


def main() -> dict[str, Any]:
    """Count every side, printing a line for each."""
    found = {}
    for name, (preset, one_kernel) in SIDES.items():
        found[name] = counted(preset, one_kernel=one_kernel)
        print(
            f"{name}: {found[name]['launches']} launches, {found[name]['fused']} of them fused, "
            f"{found[name]['bytes'] / ROWS / TOKENS:.0f} bytes a token; on a GPU "
            f"{found[name]['launches on a GPU']}, "
            f"{found[name]['bytes on a GPU'] / ROWS / TOKENS:.0f}"
        )
    return found


def counted(
    preset: str, *, one_kernel: bool, tokens: int = TOKENS, width: int = WIDTH, heads: int = HEADS
) -> dict[str, int]:
    """Launches and bytes of the second of two layers."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = {"width": width, "heads": heads, "vocab_size": 64, "context": tokens}
    layer = hb.build(preset, depth=2, **sizes).model.layers[1]
    layer.compile()
    x = torch.randn(ROWS, tokens, width, requires_grad=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x, Context())
        out.backward(torch.ones_like(out))

    passed: list[tuple[int, int]] = []
    weights = {parameter.numel() for parameter in layer.parameters() if parameter.ndim > 1}
    with unbuilt(passed), patch.object(shaped, "in_one_kernel", lambda _: one_kernel):
        _, codes = run_and_get_code(step)
    bodies = [code[code.index("def call(") :] for code in codes]
    fused = sum(len(re.findall(r"^ +cpp_fused\w*\(", body, re.M)) for body in bodies)
    others = [
        name for body in bodies for name in re.findall(r"torch\.ops\.aten\.(\w+)\.\w+\(", body)
    ]
    products = sum(len(re.findall(r"extern_kernels\.\w+\(", body)) for body in bodies)
    each = {name: next(b for end, b in OTHERS.items() if name.endswith(end)) for name in others}
    sums = others.count("cumsum") if one_kernel else 0
    launches = fused + products + len(others)
    moved = sum(size for numel, size in passed if numel not in weights)
    moved += sum(each[name] for name in others) * x.numel()
    return {
        "launches": launches,
        "fused": fused,
        "products": products,
        "others": len(others),
        "bytes": moved,
        "launches on a GPU": launches - sums,
        "bytes on a GPU": moved - sums * SUM * x.numel(),
        "bytes of weights": sum(size for numel, size in passed if numel in weights),
    }


@contextmanager
def unbuilt(passed: list[tuple[int, int]]) -> Iterator[None]:
    """Replace fused kernels by a note of their arguments' entries and bytes; note products'."""
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.select_algorithm import extern_kernels

    def note(*arguments: Any, **keywords: Any) -> None:
        tensors = (t for t in (*arguments, *keywords.values()) if isinstance(t, Tensor))
        passed.extend((t.numel(), t.numel() * t.element_size()) for t in tensors)

    def noted(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        note(*arguments, **keywords)
        return call(*arguments, **keywords)

    names = ("mm", "bmm", "addmm")
    calls = {name: partial(noted, getattr(torch, name)) for name in names}
    settings = {"compile_threads": 1, "force_disable_caches": True}
    with (
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_, **__: note),
        patch.object(cpu_vec_isa, "valid_vec_isa_list", list),
        patch.multiple(extern_kernels, create=True, **calls),
        config.patch(settings),
    ):
        yield


if __name__ == "__main__":
    main()
