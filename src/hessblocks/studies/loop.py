"""A training loop small enough to read: AdamW or SGD, warm-up and decay, clipped gradients.

Settings follow He & Hofmann (2024), appendix: linear decay to 0 after 5 % of warm-up, weight decay
0.1 on matrices, gradients clipped at norm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from hessblocks.data import Corpus
from hessblocks.errors import unknown_name
from hessblocks.studies.point import Row
from hessblocks.training.order import ShuffledPasses, spread

Observer = Callable[[nn.Module, int], list[Row]]
"""From the model and the step to rows of what is seen there."""
WARMUP = 0.05
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.999)
MOMENTUM = 0.9
CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained."""

    steps: int
    """Optimiser updates."""
    batch_size: int
    """Sequences of each update."""
    context: int
    """Tokens of a sequence."""
    learning_rate: float
    """Peak learning rate."""
    decay: str = "linear"
    """linear or cosine, to 0."""
    optimiser: str = "adamw"
    """adamw or sgd (with momentum 0.9)."""
    evaluations: int
    """Validation losses, evenly spread, the last one after the last step; one more before the first."""
    evaluation_sequences: int
    """Held-out windows of each."""
    seed: int
    """Of the order of the data."""

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, from 0, as a share of the peak."""
        warmup = max(1, round(WARMUP * self.steps))
        if step < warmup:
            return (step + 1) / warmup
        left = (self.steps - step) / max(1, self.steps - warmup)
        if self.decay not in _DECAYS:
            raise unknown_name("decay", self.decay, _DECAYS)
        return _DECAYS[self.decay](left)

    def evaluated(self) -> set[int]:
        """Steps after which a validation loss is taken."""
        return {self.steps * (k + 1) // self.evaluations for k in range(self.evaluations)}


_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 - math.cos(math.pi * left)) / 2,
}


def train(
    model: nn.Module, corpus: Corpus, plan: Plan, observer: Observer | None = None
) -> list[Row]:
    """Train `model` in place.

    Args:
        model: a causal language model.
        corpus: training and held-out tokens.
        plan: how.
        observer: looks at the model whenever a validation loss is taken.

    Returns:
        Rows with step, tokens, quantity and value; a run whose loss is no longer a number ends there,
        with an empty last value.
    """
    optimiser = make_optimiser(model, plan)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, plan.rate)
    held_out = corpus.windows("validation", plan.context)
    evaluation = Subset(held_out, spread(len(held_out), plan.evaluation_sequences))
    rows = _look(model, evaluation, plan, 0, observer)
    for step, batch in enumerate(_batches(model, corpus, plan), start=1):
        if not update(model, batch, optimiser):
            return [*rows, _row("validation_loss", None, step, plan)]
        schedule.step()
        if step in plan.evaluated():
            rows += _look(model, evaluation, plan, step, observer)
    return rows


def update(model: nn.Module, batch: Tensor, optimiser: torch.optim.Optimizer) -> bool:
    """One step; False, and nothing changed, where the loss is not a number."""
    model.train()
    optimiser.zero_grad()
    loss = model(input_ids=batch, labels=batch).loss
    if not torch.isfinite(loss):
        return False
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    return True


def make_optimiser(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """The optimiser; gains, norms and biases (fewer than two dimensions) do not decay.

    Raises:
        ArgumentError: an unknown name.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    if plan.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=BETAS)
    if plan.optimiser == "sgd":
        for group in groups:
            group["weight_decay"] = 0.0
        return torch.optim.SGD(groups, lr=plan.learning_rate, momentum=MOMENTUM)
    raise unknown_name("optimiser", plan.optimiser, ("adamw", "sgd"))


def validation_loss(model: nn.Module, windows: Subset[dict[str, Tensor]], batch_size: int) -> float:
    """Mean loss of the windows, in nats per token."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    with torch.no_grad():
        for batch in DataLoader(windows, batch_size=batch_size):
            tokens = batch["input_ids"].to(device)
            total += float(model(input_ids=tokens, labels=tokens).loss) * len(tokens)
    return total / len(windows)


def _batches(model: nn.Module, corpus: Corpus, plan: Plan) -> Iterator[Tensor]:
    windows = corpus.windows("train", plan.context)
    order = ShuffledPasses(windows, plan.steps * plan.batch_size, plan.seed)
    device = next(model.parameters()).device
    for batch in DataLoader(windows, batch_size=plan.batch_size, sampler=order):
        yield batch["input_ids"].to(device)


def _look(
    model: nn.Module,
    windows: Subset[dict[str, Tensor]],
    plan: Plan,
    step: int,
    observer: Observer | None,
) -> list[Row]:
    """The validation loss, and what the observer sees."""
    loss = validation_loss(model, windows, plan.batch_size)
    rows = [_row("validation_loss", loss if math.isfinite(loss) else None, step, plan)]
    seen = observer(model, step) if observer else []
    return rows + [{"step": step, "tokens": _tokens(step, plan), **row} for row in seen]


def _row(quantity: str, value: float | None, step: int, plan: Plan) -> Row:
    return {
        "step": step,
        "tokens": _tokens(step, plan),
        "quantity": quantity,
        "value": value,
        "method": "measured",
    }


def _tokens(step: int, plan: Plan) -> int:
    return step * plan.batch_size * plan.context
