"""Hessian products against a gradient, against other libraries and against other ways to get them.

Run `python -m benchmarks curvature_products`. The model is a GPT-2 of 4 layers, width 128,
vocabulary 1024 (0.93M parameters) on 8 x 64 tokens, float32, random weights. Sides take turns;
medians of processor time on one thread, so that 1 gradient and 1 product are counted alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import curvlinops
import hessian_eigenthings
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks._timing import alternated, kept
from hessblocks.curvature import (
    AttentionBackendWarning,
    Functional,
    Hessian,
    OuterProduct,
    ParameterGroup,
    Problem,
    parameter_groups,
)
from hessblocks.curvature.groups import merge
from hessblocks.drawing import draw as draw_figure
from hessblocks.figures import Figure, Panel, Series
from hessblocks.storage import atomic_path

PROBES = 16
FIGURE = Path(__file__).parent / "results" / "curvature_products_cost.png"
Side = Callable[[], object]


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return {
        "threads": 1,
        "probes": PROBES,
        "time": times(),
        "memory": memory(),
        "cost": cost(),
    }


def gpt(width: int = 128, vocabulary: int = 1024, tokens: int = 64, layers: int = 4) -> nn.Module:
    """A GPT-2 with random weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=4,
        vocab_size=vocabulary,
        n_positions=tokens,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def everything(model: nn.Module) -> ParameterGroup:
    """All parameters as one group."""
    return merge("everything", list(parameter_groups(model, "tensor").values()))


def gradient(model: nn.Module, ids: Tensor) -> Side:
    """One gradient with fused attention: the unit."""

    def run() -> object:
        return torch.autograd.grad(mean_loss(model, ids), list(model.parameters()))

    return run


def mean_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Next-token cross-entropy."""
    logits = model(ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def times(rounds: int = 3) -> dict[str, float]:
    """Gradients a probe, for ours, the other ways and the other libraries."""
    model = gpt()
    ids = torch.randint(0, 1024, (8, 64))
    group = everything(model)
    columns = torch.randn(PROBES, group.size).T  # one after the other, as estimators draw them
    sides = {
        **ours(model, ids, group, columns),
        **ways(model, ids, columns),
        **peers(model, ids, columns),
    }
    seconds = alternated({"gradient": gradient(model, ids), **sides}, rounds, processor=True)
    unit = seconds.pop("gradient")
    one_by_one = ("vector", "build")
    figures = {
        name: value / unit / (1 if any(word in name for word in one_by_one) else PROBES)
        for name, value in seconds.items()
    }
    for name, value in figures.items():
        print(
            f"{name}: {value:.2f} gradients a probe"
            if "build" not in name
            else f"{name}: {value:.2f} gradients"
        )
    return {"gradient (s)": unit, **figures}


def ours(model: nn.Module, ids: Tensor, group: ParameterGroup, columns: Tensor) -> dict[str, Side]:
    """Products of H, H_o and H_f with graphs held, and what building them costs."""
    sides: dict[str, Side] = {}
    for kind in (Hessian, OuterProduct, Functional):
        operator = kept(kind(Problem(model, ids), group))
        _ = operator @ columns[:, 0]
        sides[f"ours, {kind.__name__}"] = lambda operator=operator: operator @ columns
        sides[f"ours, {kind.__name__}, one vector"] = lambda operator=operator: (
            operator @ columns[:, 0]
        )
    sides["ours, build"] = lambda: Hessian(Problem(model, ids), group).problem.plan
    return sides


def ways(model: nn.Module, ids: Tensor, columns: Tensor) -> dict[str, Side]:
    """The same products by vmapped replay and by forward over reverse."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in parameters.values()]
    blocks = {
        name: piece.T.reshape(PROBES, *parameters[name].shape)
        for name, piece in zip(parameters, columns.split(sizes), strict=True)
    }
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    with sdpa_kernel(SDPBackend.MATH):
        pulled = grad_of(model, leaves, ids)

    def replay() -> object:
        return torch.autograd.grad(
            pulled,
            list(leaves.values()),
            list(blocks.values()),
            is_grads_batched=True,
            retain_graph=True,
        )

    def forward_over_reverse() -> object:
        def loss(values: dict[str, Tensor]) -> Tensor:
            logits = functional_call(model, values, (ids,), {"use_cache": False}).logits
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

        with sdpa_kernel(SDPBackend.MATH):
            return vmap(lambda z: jvp(grad(loss), (parameters,), (z,))[1])(blocks)

    return {
        "double-backward replay, 16 probes batched": replay,
        "forward over reverse, 16 probes vmapped": forward_over_reverse,
    }


def grad_of(model: nn.Module, leaves: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, ...]:
    """The gradient with its graph."""
    logits = functional_call(model, leaves, (ids,), {"use_cache": False}).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return torch.autograd.grad(loss, list(leaves.values()), create_graph=True)


class Flat(nn.Module):
    """A model for curvlinops: one tensor in, (rows, classes) out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the tokens that have a next one."""
        return self.model(ids, use_cache=False).logits[:, :-1].flatten(0, 1)


def peers(model: nn.Module, ids: Tensor, columns: Tensor) -> dict[str, Side]:
    """Curvlinops with a matrix and a vector, hessian-eigenthings vector by vector."""
    data = [(ids, ids[:, 1:].flatten())]
    other = curvlinops.HessianLinearOperator(
        Flat(model),
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        data,
        check_deterministic=False,
    )
    third = hessian_eigenthings.HessianOperator(model, [ids], mean_loss)

    def plain(run: Side) -> Side:
        def with_plain_attention() -> object:
            with sdpa_kernel(SDPBackend.MATH):
                return run()

        return with_plain_attention

    return {
        "curvlinops, matrix": plain(lambda: other @ columns),
        "curvlinops, one vector": plain(lambda: other @ columns[:, 0]),
        "hessian-eigenthings, one vector": plain(lambda: third.matvec(columns[:, 0])),
    }


def memory() -> dict[str, float]:
    """Peak memory of one product, building included, over that of a gradient; each by itself."""
    kinds = ("gradient", "Hessian", "OuterProduct", "Functional")
    peaks = {}
    for kind in kinds:
        output = subprocess.run(
            [
                sys.executable,
                "-c",
                f"from benchmarks.curvature_products import peak; peak({kind!r})",
            ],
            check=True,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": "65536",
                "MALLOC_TRIM_THRESHOLD_": "65536",
            },
        ).stdout
        peaks[kind] = json.loads(output)
    for kind in kinds[1:]:
        print(f"{kind}, one product: peak memory {peaks[kind] / peaks['gradient']:.2f} gradients'")
    return {
        **peaks,
        **{f"{kind} / gradient": peaks[kind] / peaks["gradient"] for kind in kinds[1:]},
    }


def peak(kind: str) -> None:
    """Print the bytes that one gradient or product adds at its worst moment (Linux)."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", AttentionBackendWarning)
    model = gpt()
    ids = torch.randint(0, 1024, (8, 64))
    group = everything(model)
    vector = torch.randn(group.size)
    kinds = {"Hessian": Hessian, "OuterProduct": OuterProduct, "Functional": Functional}

    def run() -> object:
        return (
            gradient(model, ids)()
            if kind == "gradient"
            else kinds[kind](Problem(model, ids), group) @ vector
        )

    run()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = kilobytes("VmRSS")
    run()
    print((kilobytes("VmHWM") - before) * 1024)


def kilobytes(field: str) -> int:
    """A field of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def cost(rounds: int = 3) -> dict[str, Any]:
    """Time a product of 4 probes over a factor of 16 in tokens and in parameters (processor)."""
    by_tokens = {rows * 64: (128, rows) for rows in (2, 4, 8, 16, 32)}
    by_width = {width: (width, 4) for width in (128, 256, 512)}
    found: dict[str, Any] = {}
    for name, sizes in (("tokens", by_tokens), ("parameters", by_width)):
        points = [product_seconds(width, rows, rounds) for width, rows in sizes.values()]
        scale = list(sizes) if name == "tokens" else [point["parameters"] for point in points]
        found[name] = {
            "sizes": scale,
            "product": [point["product"] for point in points],
            "gradient": [point["gradient"] for point in points],
        }
        found[name]["slopes"] = {
            side: slope(scale, found[name][side]) for side in ("product", "gradient")
        }
        print(
            f"cost against {name}, {scale[0]} to {scale[-1]}: product slope "
            f"{found[name]['slopes']['product']:.2f}, gradient "
            f"{found[name]['slopes']['gradient']:.2f}"
        )
    draw(found)
    return found


def product_seconds(width: int, rows: int, rounds: int) -> dict[str, float]:
    """A product and a gradient of one size; the vocabulary grows with the width squared."""
    model = gpt(width, vocabulary=1024 * (width // 128) ** 1)
    ids = torch.randint(0, 1024, (rows, 64))
    group = everything(model)
    operator = kept(Hessian(Problem(model, ids), group))
    columns = torch.randn(group.size, 4)
    sides = {"gradient": gradient(model, ids), "product": lambda: operator @ columns}
    return {"parameters": group.size, **alternated(sides, rounds, processor=True)}


def slope(sizes: list[float], seconds: list[float]) -> float:
    """Log-log slope by least squares."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, seconds))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def draw(found: dict[str, Any]) -> None:
    """Seconds against tokens and parameters on logarithmic axes."""
    panels = []
    for name, values in found.items():
        series = tuple(
            Series(name=label, x=tuple(values["sizes"]), y=tuple(values[side]))
            for side, label in (("product", "H times 4 vectors"), ("gradient", "gradient"))
        )
        slopes = ", ".join(f"{side} {slope:.2f}" for side, slope in values["slopes"].items())
        panel = Panel(
            title=f"slopes: {slopes}",
            x_label=name,
            y_label="processor time (s)",
            series=series,
            x_scale="log",
            y_scale="log",
        )
        panels.append(panel)
    figure = Figure(title="What a product costs", caption="", panels=tuple(panels))
    with atomic_path(FIGURE) as path:
        draw_figure(figure).savefig(path, format="png", dpi=150)


if __name__ == "__main__":
    main()
