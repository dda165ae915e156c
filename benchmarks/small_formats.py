"""A small model with rows of 256: k-quants in files, and forecasts of rounding with error feedback.

    python -m benchmarks small_formats

A Llama of 6 layers and width 256 is trained on Python code for a few minutes. Then GPTQ (3 and 4
bits, groups of 64) is made of each matrix alone, its price forecast, and its KL measured, each on
text of its own; and files of the sizes of llama.cpp's mixes are allocated and measured.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks import export
from hessblocks.data import load_corpus
from hessblocks.tensor_formats import KINDS, mix

STEPS, BATCH, TOKENS, VOCABULARY = 400, 16, 64, 2048
GROUP = 64


def trained() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """Train the model; return it with three pieces of held-out text of 64 windows."""
    corpus = load_corpus(None, VOCABULARY)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=TOKENS,
            tie_word_embeddings=True,
        )
    )  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=STEPS)
    draw = torch.Generator().manual_seed(0)
    text = torch.as_tensor(corpus.splits["train"][:].astype("int64"))
    for _ in range(STEPS):
        starts = torch.randint(len(text) - TOKENS, (BATCH,), generator=draw)
        ids = torch.stack([text[s : s + TOKENS] for s in starts.tolist()])
        loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
    print(f"trained: loss {float(loss.detach()):.3f}", flush=True)
    other = torch.as_tensor(corpus.splits["validation"][:].astype("int64"))
    rows = other[: len(other) // TOKENS * TOKENS].view(-1, TOKENS)
    rows = rows[torch.randperm(len(rows), generator=draw)[:192]]
    return model.eval(), [{"input_ids": some} for some in rows.split(64)]


def gptq(weight: Tensor, moments: Tensor, bits: int) -> Tensor:
    """Round columns in order, and feed errors back (Frantar et al. 2023, algorithm 1)."""
    left, levels = weight.double().clone(), 2**bits - 1
    damped = moments.double() + 0.01 * moments.diagonal().mean() * torch.eye(len(moments))
    inverse = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    found = torch.zeros_like(left)
    for column in range(weight.shape[1]):
        if column % GROUP == 0:
            low, high = left[:, column : column + GROUP].aminmax(dim=1)
            scale = (high.clamp_min(0) - low.clamp_max(0)).clamp_min(1e-9) / levels
            zero = (-low.clamp_max(0) / scale).round()
        codes = (left[:, column] / scale + zero).round().clamp(0, levels)
        found[:, column] = (codes - zero) * scale
        error = (left[:, column] - found[:, column]) / inverse[column, column]
        left[:, column:] -= error[:, None] * inverse[column, column:]
    return found.to(weight)


def input_moments(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Second moments of the inputs of each linear layer."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):

            def note(_: Any, inputs: tuple[Tensor, ...], name: str = name) -> None:
                rows = inputs[0].flatten(0, -2)
                found[f"{name}.weight"] = rows.T @ rows / len(rows)

            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(**batch)
    for module in model.modules():
        module._forward_pre_hooks.clear()
    return found


def ratios(check: hb.bill.BillCheck) -> dict[str, float]:
    """Sum up forecast over measured KL."""
    found = [row["ratio"] for row in check.to_rows()]
    within = sum(0.8 <= ratio <= 1.25 for ratio in found) / len(found)
    return {
        "median": statistics.median(found),
        "within": within,
        "least": min(found),
        "most": max(found),
    }


def main() -> dict[str, Any]:
    """Train, forecast and measure; print a line a figure."""
    start = time.process_time()
    model, (fitted, priced, measured) = trained()
    figures: dict[str, Any] = {}
    moments = input_moments(model, fitted)
    problem = hb.Problem(model, priced)
    for bits in (3, 4):
        changes = {
            name: {name: gptq(p.detach(), moments[name], bits)}
            for name, p in model.named_parameters()
            if name in moments and "lm_head" not in name
        }
        for form in ("moments", "mixture"):
            check = hb.price(problem, changes, 64, form=form).check([*changes], measured)
            figures[f"gptq {bits} bits, {form}"] = found = ratios(check)
            print(f"gptq {bits} bits, {form}: {found}", flush=True)
    changes = hb.change_each(model, *(hb.in_format(f"gguf:{kind}") for kind in KINDS))
    bill = hb.price(problem, changes, 64)
    names = export.gguf_tensors(model, "llama")
    places = {names[price.place][0]: price.place for price in bill.values()}
    shapes = {tensor: model.get_parameter(place).shape for tensor, place in places.items()}
    for name in ("Q2_K", "Q3_K_M", "IQ4_NL", "Q4_K_M"):
        mixed = [f"{places[tensor]}, {kind}" for tensor, kind in mix(name, shapes).items()]
        own = bill.allocate(bytes=bill.chosen(mixed).bytes)
        rows = [bill.together(some, measured).to_rows()[0] for some in (mixed, own.names)]
        figures[name] = {
            "bits": own.bits,
            "mix": rows[0]["measured"],
            "hessblocks": rows[1]["measured"],
            "ratio": rows[1]["measured"] / rows[0]["measured"],
            "forecast over measured": [row["forecast"] / row["measured"] for row in rows],
        }
        print(f"size of {name}: {figures[name]}", flush=True)
    print(f"{time.process_time() - start:.0f} s of processor time")
    return figures


if __name__ == "__main__":
    main()
