"""Loss curves of tiny models, remembered.

    python -m tests.models.golden            writes them anew
    python -m tests.models.golden --print    prints those of this processor

Double precision, so that other processors and numbers of threads give the same digits. Initial
values are drawn in float32, whose last digits differ between instruction sets; they are rounded to
a thousandth, which takes that away.
"""

import json
import sys
from pathlib import Path

import torch

import hessblocks as hb

FILE = Path(__file__).with_name("golden.json")
STEPS = 200
LEARNED = ", learned positions"
"""Ends the names of those that have them."""
FIXED = ", start fixed"
"""Ends the names of those whose weights are drawn with 0.02 at every width."""
NAMES = tuple(
    name + start
    for start in ("", FIXED)
    for name in (*hb.PRESETS, f"pre-ln{LEARNED}", f"sas-p{LEARNED}")
)
KEPT = (0, 1, 2, 5, 10, 20, 50, 100, 150, 199)
"""Steps whose loss is kept."""


def losses(name: str, steps: int) -> list[float]:
    """Training losses in nats per token, of AdamW on tokens that count up by a few each time."""
    torch.manual_seed(0)
    start, name = ("fixed" if name.endswith(FIXED) else "scaled"), name.removesuffix(FIXED)
    preset, position = name.removesuffix(LEARNED), "learned" if name.endswith(LEARNED) else None
    sizes = {"depth": 2, "width": 16, "heads": 4, "vocab_size": 23, "context": 16}
    model = hb.build(preset, position=position, start=start, **sizes).double()
    round_off(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        starts, strides = torch.randint(0, 23, (4, 1)), torch.randint(1, 4, (4, 1))
        tokens = (starts + strides * torch.arange(16)) % 23
        loss = model(tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def round_off(model: torch.nn.Module) -> None:
    """Round every matrix that was drawn to multiples of 2^-10."""
    for tensor in model.state_dict().values():
        if tensor.is_floating_point() and tensor.ndim > 1:
            tensor.copy_((tensor * 1024).round() / 1024)


def main() -> None:
    """Write the file, or print the curves."""
    torch.set_num_threads(1)
    curves = {}
    for name in NAMES:
        curve = losses(name, STEPS)
        curves[name] = [curve[step] for step in KEPT]
    if "--print" in sys.argv:
        print(json.dumps(curves))
        return
    golden = {"torch": torch.__version__.split("+")[0], "steps": KEPT, "losses": curves}
    FILE.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
