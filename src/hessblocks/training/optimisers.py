"""Make the optimiser of a run: Muon for the layers' matrices, and rates scaled by the width."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.optim import Muon, Optimizer
from transformers import PreTrainedModel, Trainer

from hessblocks.settings import TrainingSettings

OptimiserGroups = list[dict[str, Any]]
"""Parameter groups of torch's optimisers: parameters with learning rate and weight decay."""


class OptimiserPair(Optimizer):
    """Several optimisers as one, for the Trainer and its checkpoints."""

    def __init__(self, *inner: Optimizer) -> None:
        self.inner = inner
        super().__init__([group for optimiser in inner for group in optimiser.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each optimiser its parameter groups, and all of them one state."""
        start = 0
        for optimiser in self.inner:
            end = start + len(optimiser.param_groups)
            optimiser.param_groups, start = self.param_groups[start:end], end
            optimiser.state = self.state

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of all optimisers."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step each optimiser."""
        for optimiser in self.inner:
            optimiser.step()


def layer_matrices(model: PreTrainedModel) -> list[Float[Tensor, "outputs inputs"]]:
    """List the weight matrices of a model's layers, without embeddings, output head and vectors.

    Args:
        model: model made of blocks.

    Returns:
        Trainable parameters with two axes.
    """
    layers = cast(Iterable[nn.Module], model.base_model.layers)
    return [p for layer in layers for p in layer.parameters() if p.ndim == 2 and p.requires_grad]


def optimiser_of(trainer: Trainer, training: TrainingSettings) -> Optimizer | None:
    """Make the optimiser of a run whose layer matrices have their own optimiser or rate.

    With rates by width, the rate of the matrices is `learning_rate` times base width over width.
    Their weight decay is divided by the same factor, so that rate times decay stays the same.

    Args:
        trainer: Trainer with its model.
        training: settings of the training.

    Returns:
        The optimiser; None if the Trainer's default is enough.

    Source:
        Muon: torch.optim.Muon, its step as large as AdamW's (Liu et al., 2025, arXiv 2502.16982,
        eq. 4). Rates by width: Yang et al. (2022), arXiv 2203.03466, table 8, for Adam; only the
        rate of hidden matrices is taken from it.
    """
    muon = training.optimiser == "muon"
    if not muon and training.rates == "same":
        return None
    model = cast(PreTrainedModel, trainer.model)
    factor = 1.0
    if training.rates == "width":
        factor = training.base_width / model.config.hidden_size
    rate, decay = training.learning_rate, training.weight_decay
    matrices = layer_matrices(model)
    matrix_ids = {id(matrix) for matrix in matrices}
    others = [p for p in model.parameters() if id(p) not in matrix_ids and p.requires_grad]
    first = {"params": matrices, "lr": factor * rate, "weight_decay": decay / factor}
    rest: OptimiserGroups = [
        {"params": [p for p in others if p.ndim >= 2], "lr": rate, "weight_decay": decay},
        {"params": [p for p in others if p.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]
    kind, options = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if not muon:
        return cast(Optimizer, kind([first, *rest], **options))
    return OptimiserPair(Muon([first], adjust_lr_fn="match_rms_adamw"), kind(rest, **options))


def averages(model: PreTrainedModel, optimiser: str) -> Sequence[tuple[int, Shaped[Tensor, "..."]]]:
    """List how many state tensors (moving averages) an optimiser has for each trained parameter.

    Args:
        model: model made of blocks.
        optimiser: adamw, sgd or muon.

    Returns:
        Pairs (number of state tensors, parameter).
    """
    others, inner = {"adamw": (2, 2), "sgd": (1, 1), "muon": (2, 1)}[optimiser]
    matrix_ids = {id(matrix) for matrix in layer_matrices(model)} if inner != others else set()
    return [
        (inner if id(p) in matrix_ids else others, p) for p in model.parameters() if p.requires_grad
    ]
