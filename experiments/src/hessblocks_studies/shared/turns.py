"""Time training steps, forward passes and decoding of several models in turns.

Other load on the machine then affects all models equally.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hessblocks.training import resolve_device, working_seconds

K = TypeVar("K")
ROUNDS = 12
"""Default number of measured rounds, after one warm-up round."""


def in_turns(runs: Mapping[K, Callable[[], object]], rounds: int) -> dict[K, list[float]]:
    """Time tasks in turns, in seconds (processor time on a CPU).

    Args:
        runs: tasks by name.
        rounds: number of measured rounds, after one warm-up round.

    Returns:
        The seconds of each task, round by round.
    """
    device = resolve_device("auto")
    seconds: dict[K, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = working_seconds(device)
            run()
            if turn:
                seconds[name].append(working_seconds(device) - start)
    return seconds


class TimedModel:
    """Model with a batch and fused AdamW of learning rate 1e-4; bf16 autocast on CUDA."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Int[Tensor, "sequences tokens"],
        labels: Int[Tensor, "sequences tokens"],
        clip: float,
    ) -> None:
        """Move the model and its batch to the device; `clip` is the largest norm of a gradient."""
        device = resolve_device("auto")
        self.model: Any = nn.Module.to(model, device)
        self.precision = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens, self.labels = tokens.to(device), labels.to(device)
        self.clip = clip

    def step(self) -> None:
        """Run a training step; gradients are freed at its end."""
        self.model.train()
        with self.precision:
            loss = self.model(input_ids=self.tokens, labels=self.labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()

    @torch.no_grad()
    def forward_pass(self) -> None:
        """Run a forward pass over the batch, without gradients."""
        self.model.eval()
        with self.precision:
            self.model(input_ids=self.tokens)

    @torch.no_grad()
    def decode(self) -> int:
        """Pass the first sequence token by token, as in generation; return the cache's bytes."""
        self.model.eval()
        cache: Any = None
        with self.precision:
            for token in self.tokens[:1].split(1, dim=1):
                outputs = self.model(input_ids=token, past_key_values=cache, use_cache=True)
                cache = outputs.past_key_values
        tensors = (leaf for layer in cache.layers for leaf in (layer.keys, layer.values))
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def held(self) -> list[Shaped[Tensor, "..."]]:
        """List the tensors held before a step: weights, buffers and the optimiser's averages."""
        states = [leaf for leaf in tree_leaves(self.optimiser.state) if torch.is_tensor(leaf)]
        return [*self.model.state_dict().values(), *states]
