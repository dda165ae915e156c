"""What rounding the cache costs in blocks before and after the paper's simplification.

Run `python -m benchmarks cache_of_blocks`; some two minutes of one core. Models of four layers of
width 64 learn bytes of Python's documentation; keys and values of all layers are rounded together.
In SAS the values of a head are its share of the block's normed input, besides those of layer 0.
"""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import torch

import hessblocks as hb

BLOCKS = ("pre-ln-zero", "sas", "sas-p")
BITS = (3, 4)
CONTEXT, BATCH, UPDATES, RATE, SEED = 64, 16, 400, 3e-3, 0
WINDOWS = 64
"""Windows of the forecasts, and of the KL."""


def main() -> dict[str, Any]:
    """Train each block, and price its cache."""
    torch.set_num_threads(1)
    return {block: priced(block) for block in BLOCKS}


def priced(block: str) -> dict[str, Any]:
    """Train a block, and forecast and measure what rounding costs on text not trained on."""
    text = "".join(pydoc_data.topics.topics.values()).encode()
    windows = torch.tensor(list(text[: len(text) // CONTEXT * CONTEXT])).view(-1, CONTEXT)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(SEED))
    held, learnt = windows[order[: 2 * WINDOWS]], windows[order[2 * WINDOWS :]]
    torch.manual_seed(SEED)
    model = hb.build(block, depth=4, width=64, heads=4, vocab_size=256, context=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, UPDATES)
    for _ in range(UPDATES):
        batch = learnt[torch.randint(len(learnt), (BATCH,))]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        loss = float(model(input_ids=held, labels=held).loss)
    changes = hb.cache_changes(model, keys=BITS, values=BITS)
    changes |= hb.cache_changes(model, keys=BITS, values=BITS, per="channel")
    bill = hb.price(hb.Problem(model, {"input_ids": held[:WINDOWS]}), changes, samples=WINDOWS)
    sets: dict[str, tuple[str, ...]] = {}
    for name, change in changes.items():
        sets[change.how] = (*sets.get(change.how, ()), name)
    check = bill.check(list(sets.values()), {"input_ids": held[WINDOWS:]}).to_rows()
    rows = [{**row, "name": how} for how, row in zip(sets, check, strict=True)]
    for row in rows:
        print(f"{block}, loss {loss:.3f}, {row['name']}: {row['forecast']:.3g} "
              f"± {row['forecast_error']:.1g}, measured {row['measured']:.3g} "
              f"± {row['measured_error']:.1g}", flush=True)  # fmt: skip
    return {"loss": loss, "rows": rows}
