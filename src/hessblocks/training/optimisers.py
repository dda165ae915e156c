"""Make the optimiser of a run: Muon for the layers' matrices, and rates that go by the width."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.optim import Muon, Optimizer
from transformers import PreTrainedModel, Trainer

from hessblocks.settings import TrainingSettings

Groups = list[dict[str, Any]]
"""Parameters with their rate and decay, as torch's optimisers take them."""


class OptimiserPair(Optimizer):
    """Optimisers that step together, one to the Trainer and its checkpoints."""

    def __init__(self, *inner: Optimizer) -> None:
        self.inner = inner
        super().__init__([group for one in inner for group in one.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each its groups and the state of all."""
        start = 0
        for one in self.inner:
            end = start + len(one.param_groups)
            one.param_groups, start = self.param_groups[start:end], end
            one.state = self.state

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of all."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step each."""
        for one in self.inner:
            one.step()


def layer_matrices(model: PreTrainedModel) -> list[Float[Tensor, "outputs inputs"]]:
    """List the matrices of a model's layers: all but embeddings, a head of its own and vectors.

    Args:
        model: made of blocks.

    Returns:
        Parameters of two dimensions.
    """
    layers = cast(Iterable[nn.Module], model.base_model.layers)
    return [p for layer in layers for p in layer.parameters() if p.ndim == 2 and p.requires_grad]


def optimiser_of(trainer: Trainer, training: TrainingSettings) -> Optimizer | None:
    """Make the optimiser of a run whose matrices are stepped in a way of their own.

    Their rate is `learning_rate` times base width over width where rates go by the width; what
    decays in a step stays the same, so that their weight decay is divided by as much.

    Args:
        trainer: with its model.
        training: of the run.

    Returns:
        The optimiser; None where the Trainer's own will do.

    Source:
        Muon: torch.optim.Muon, its step as large as AdamW's (Liu et al., 2025, arXiv 2502.16982,
        eq. 4). Rates by width: Yang et al. (2022), arXiv 2203.03466, table 8, for Adam; of it the
        rate of hidden matrices alone.
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
    own = {id(one) for one in matrices}
    others = [p for p in model.parameters() if id(p) not in own and p.requires_grad]
    first = {"params": matrices, "lr": factor * rate, "weight_decay": decay / factor}
    rest: Groups = [
        {"params": [p for p in others if p.ndim >= 2], "lr": rate, "weight_decay": decay},
        {"params": [p for p in others if p.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]
    kind, given = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if not muon:
        return cast(Optimizer, kind([first, *rest], **given))
    return OptimiserPair(Muon([first], adjust_lr_fn="match_rms_adamw"), kind(rest, **given))


def averages(model: PreTrainedModel, optimiser: str) -> Sequence[tuple[int, Shaped[Tensor, "..."]]]:
    """Say how many averages an optimiser keeps of each trained parameter.

    Args:
        model: made of blocks.
        optimiser: adamw, sgd or muon.

    Returns:
        Number and parameter.
    """
    others, inner = {"adamw": (2, 2), "sgd": (1, 1), "muon": (2, 1)}[optimiser]
    own = {id(one) for one in layer_matrices(model)} if inner != others else set()
    return [(inner if id(p) in own else others, p) for p in model.parameters() if p.requires_grad]
