"""Settings of a masked-LM pretraining."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from hessblocks.blocks import MLP, BlockConfig, preset, with_start
from hessblocks.models import build
from hessblocks_studies.data import RunSize

MLP_GAIN = 0.2
"""β_FF before depth scaling, if it is trained: 0.05 at 16 layers."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(RunSize):
    """Settings of a masked language model and its training: AdamW, linear warm-up and decay.

    Source: He & Hofmann (2024), appendix, BERT settings: GEGLU, a quarter of the tokens masked,
    betas (0.9, 0.98), eps 1e-12, gradients clipped at 0.5.
    """

    preset: str
    """Name of the block."""
    seed: int
    """Seed of the weights, the order of the data and the masks."""
    mask_share: float = 0.25
    """Share of the tokens that the model must predict."""
    warmup: float = 0.05
    """Share of the steps with a linear increase of the learning rate from 0."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings; gains and norms have none."""
    data: str = "docstrings"
    """Name of the text: docstrings, or hub:NAME."""
    slots: tuple[str, ...] = ()
    """Slots of the block that differ from the preset's, as `slot=value`."""
    embedding_std: float = 0.02
    """Initial standard deviation of the embeddings' entries."""

    def block(self) -> BlockConfig:
        """Build the preset with the gated MLP of the paper's BERT, with initial std 0.02."""
        block = preset(self.preset, width=self.width, heads=self.heads, mlp_width=self.mlp_width)
        branch = block.mlp_branch
        if branch.trainable:
            branch = branch.replace(gain=MLP_GAIN)
        block = block.replace(mlp=MLP(activation="gelu", gated=True), mlp_branch=branch)
        return with_start(block, "fixed")

    def model(self, task: str = "masked-lm", classes: int = 2) -> PreTrainedModel:
        """Build a freshly initialised model; its weights depend only on `seed`."""
        torch.manual_seed(self.seed)
        return build(
            self.block(),
            depth=self.depth,
            vocab_size=self.vocab_size,
            context=self.context,
            task=task,
            classes=classes,
            slots=self.slots,
            embedding_std=self.embedding_std,
        )
