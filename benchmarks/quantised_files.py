"""GGUF files of equal size: llama.cpp's mixes and `hb.quantise`, measured by llama.cpp itself.

    HESSBLOCKS_SMOLLM2=SmolLM2-135M-Instruct.Q4_1.gguf python -m benchmarks quantised_files

The model is stored in 4 bits (Q4_1), so it is taken off its lattice first: every entry between the
ends of its block moves by up to half a step. That float32 model is the original. Forecasts are from
32 windows of 96 tokens of Python's documentation; the KL is llama.cpp's to its own float32 logits,
on 24 other windows of it and on 24 of Python's source. llama.cpp rounds the inputs of weights to 8
bits too, which costs the same in every file: the bill forecasts it from the same windows. Needs
gguf, libgguf and xllamacpp.
"""

import inspect
import os
import pydoc_data.topics
import statistics
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import torch

import hessblocks as hb
from benchmarks._llama_cpp import logits
from hessblocks import export
from hessblocks.data import Windows, encoded
from hessblocks.tensor_formats import KINDS, mix

TOKENS, FITTED, MEASURED = 96, 32, 24
SOURCE = "HESSBLOCKS_SMOLLM2"
"""Environment variable with the GGUF file."""


def off_the_lattice(source: Path, out: Path) -> None:
    """Write the float32 original, whose Q4_1 is the given file."""
    draw = np.random.default_rng(0)
    tensors = {}
    for tensor in gguf.GGUFReader(source).tensors:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
            blocks = rows.reshape(-1, 32)
            low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
            inner = (blocks > low) & (blocks < high)
            noise = draw.uniform(-0.5, 0.5, blocks.shape).astype(np.float32)
            rows = (blocks + inner * (high - low) / 15 * noise).reshape(rows.shape)
        tensors[tensor.name] = torch.from_numpy(rows), "F32"
    export.write_gguf(out, export.header_of(str(source), None, None), tensors)


def texts() -> dict[str, str]:
    """Python's documentation, and source of its standard library."""
    import argparse
    import tarfile

    topics = "\n\n".join(pydoc_data.topics.topics.values())
    return {"documentation": topics, "source": "".join(map(inspect.getsource, (argparse, tarfile)))}


def priced(original: Path, windows: torch.Tensor) -> hb.Bill:
    """Price every tensor in every type that fits it."""
    model, _ = hb.load(original)
    changes = hb.change_each(model, *(hb.in_format(f"gguf:{kind}") for kind in KINDS))
    return hb.price(hb.Problem(model, {"input_ids": windows}), changes, FITTED)


def main() -> dict[str, Any]:
    """Write and measure the files, one after the other, in a temporary folder."""
    with TemporaryDirectory() as folder:
        return measured(Path(os.environ[SOURCE]), Path(folder))


def measured(source: Path, work: Path) -> dict[str, Any]:
    """Price, allocate, write and measure; print a line a file."""
    original = work / "original.gguf"
    off_the_lattice(source, original)
    start = time.process_time()
    _, tokenizer = hb.load(original)
    drawn = {
        name: Windows(encoded(tokenizer, [text]), TOKENS).drawn(
            FITTED + MEASURED if name == "documentation" else MEASURED, 0, "windows"
        )
        for name, text in texts().items()
    }
    bill = priced(original, drawn["documentation"][:FITTED])
    figures: dict[str, Any] = {"pairs": len(bill), "seconds": time.process_time() - start}
    rounded = hb.activation_changes(bill.problem.model, "*", bits="gguf:Q8_0")
    inputs = hb.price(bill.problem, rounded, FITTED).sum([*rounded]).forecast
    figures |= {"inputs, forecast": inputs.value, "error of it": inputs.standard_error}
    print(figures, flush=True)
    held_out = {name: some[-MEASURED:].numpy() for name, some in drawn.items()}
    vocabulary = bill.problem.model.config.vocab_size
    base = {
        name: torch.from_numpy(np.stack([*logits(original, some, vocabulary)])).log_softmax(-1)
        for name, some in held_out.items()
    }
    names = export.gguf_tensors(bill.problem.model, "llama")
    places = {names[p.place][0]: p for p in bill.values()}
    shapes = {t: bill.problem.model.get_parameter(p.place).shape for t, p in places.items()}

    def mixed(name: str) -> list[str]:
        return [f"{places[t].place}, {kind}" for t, kind in mix(name, shapes).items()]

    table = "model.embed_tokens.weight"
    plans: dict[tuple[str, str], list[str]] = {}
    for size in ("IQ4_NL", "Q4_K_M"):
        own = bill.chosen(mixed(size))
        plans[size, "llama.cpp's mix"] = mixed(size)
        plans[size, "hessblocks"] = [*bill.allocate(bytes=own.bytes).names]
        others = [p for p in bill.values() if p.place != table or p.how == "gguf:Q8_0"]
        room = own.total.bytes
        fixed = hb.bill.allocate(others, bytes=room)
        plans[size, "hessblocks, embedding as the mix"] = [p.name for p in fixed]
    plans["Q4_0", "llama.cpp's mix"] = mixed("Q4_0")
    plans["Q5_0", "llama.cpp's mix"] = mixed("Q5_0")
    rows, first = [], {}
    for (size, by), chosen in plans.items():
        allocation, path = bill.chosen(chosen), work / "plan.gguf"
        start = time.process_time()
        allocation.save(path, source=str(original))
        tensors = gguf.GGUFReader(path).tensors
        stored = sum(int(t.n_bytes) for t in tensors)
        assert stored == allocation.bytes, (stored, allocation.bytes)
        row = {"size of": size, "by": by, "tensor bytes": stored, "bits": allocation.bits,
               "forecast": allocation.total.forecast.value,
               "forecast error": allocation.total.forecast.standard_error}  # fmt: skip
        for text, windows in held_out.items():
            kl = torch.stack([
                (before.exp() * (before - torch.from_numpy(after).log_softmax(-1)))
                .sum(-1, dtype=torch.float64)[:-1].mean()
                for before, after in zip(
                    base[text], logits(path, windows, vocabulary), strict=True
                )
            ])  # fmt: skip
            first.setdefault((size, text), kl)
            ratio = float(kl.mean() / first[size, text].mean())
            error = float((kl - ratio * first[size, text]).std() / MEASURED**0.5)
            row |= {f"KL, {text}": float(kl.mean()),
                    f"KL error, {text}": float(kl.std() / MEASURED**0.5),
                    f"of the mix's, {text}": ratio,
                    f"error of it, {text}": error / float(first[size, text].mean()),
                    f"forecast over KL, {text}": row["forecast"] / float(kl.mean()),
                    f"with inputs, {text}": (row["forecast"] + inputs.value) / float(kl.mean()),
            }  # fmt: skip
        rows.append(row)
        kinds = Counter(p.how for p in allocation.choices)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, dict(kinds),
              f"{time.process_time() - start:.0f} s", flush=True)  # fmt: skip
    ratios = [row["forecast over KL, documentation"] for row in rows]
    return figures | {"files": rows, "forecast over KL, median": statistics.median(ratios)}
