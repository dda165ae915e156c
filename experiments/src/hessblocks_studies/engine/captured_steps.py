"""Replay the forward and backward pass of training steps as one CUDA graph."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Batch = dict[str, Int[Tensor, "sequences tokens"]]
"""Token ids and labels."""
WARM_UP = 3
"""Passes before the capture, in which libraries allocate their workspaces."""


class CapturedPasses:
    """Forward and backward pass of batches of one shape, captured as a CUDA graph.

    A small model on a GPU spends its time on launching kernels; a replay launches them all at once.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        """Capture the passes of `model` on a batch; gradients of the parameters are overwritten."""
        self.batch = {name: tensor.clone() for name, tensor in batch.items()}
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._forget()
                model(**self.batch).loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        self._forget()  # the capture then allocates gradients of its own
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = model(**self.batch).loss
            self.loss.backward()
        self.gradients = [p.grad for p in self.parameters]

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def replay(self, batch: Batch) -> Float[Tensor, ""]:
        """Compute the loss of a batch; the parameters' gradients are set, not added to."""
        for name, kept in self.batch.items():
            kept.copy_(batch[name].view(kept.shape))  # no broadcasting
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        loss: Tensor = self.loss.detach().clone()  # the next replay overwrites it
        return loss


def capture_steps(trainer: Any) -> None:
    """Make a trainer replay its steps on a GPU; on another device it remains as it is.

    Losses equal those of usual steps up to rounding. A trainer with steps of its own (masks), with
    accumulated batches or several processes remains as it is too.

    Args:
        trainer: `training.RunTrainer` of a causal language model.
    """
    from hessblocks import training  # the Trainer, which the other parts of the engine do without

    arguments = trainer.args
    usual = type(trainer) is training.RunTrainer and arguments.world_size == 1
    if not usual or arguments.gradient_accumulation_steps > 1 or arguments.device.type != "cuda":
        return
    passes: list[CapturedPasses] = []

    def step(model: nn.Module, inputs: dict[str, Any], *_: object) -> Tensor:
        model.train()
        batch = trainer._prepare_inputs(inputs)
        if not passes:
            with contextlib.nullcontext() if arguments.bf16 else _in_tf32():
                passes.append(CapturedPasses(model, batch))
        loss = passes[0].replay(batch)
        trainer._losses.append(loss)
        return loss

    trainer.training_step = step


@contextlib.contextmanager
def _in_tf32() -> Iterator[None]:
    """Capture products of float32 matrices in TF32, with 10 bits of fraction."""
    matmul: Any = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before
