"""How a saved model is fine-tuned on labelled text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hessblocks.errors import ArgumentError
from hessblocks.settings.field_marks import SEED, AtLeast, check_ranges
from hessblocks.settings.optimisation import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """AdamW with linear warm-up and decay, over whole passes.

    Source: Devlin et al. (2019), appendix A.3, for passes, batch and rate.
    """

    text: tuple[str, ...] = ("text",)
    """Column of the text; two columns with a comma where a pair is judged."""
    label: str = "label"
    """Column of the label."""
    held_out: float = 0.2
    """Share of the texts of each label that is held out."""
    epochs: Annotated[int, AtLeast(1)] = 3
    """Passes over the training texts."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Texts of each update."""
    learning_rate: float = 5e-5
    """Peak learning rate; models of a few million parameters want about 1e-3."""
    tokens: Annotated[int | None, AtLeast(2)] = None
    """Longest text in tokens, longer ones are cut; what the model takes by default."""
    seed: Annotated[int, SEED] = 0
    """Random seed of a new head, of the texts held out and of their order."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)
        if not 0 < self.held_out < 1:
            raise ArgumentError(
                f"held_out: expected a share above 0 and below 1, got {self.held_out!r}."
            )
        if len(self.text) not in (1, 2):
            raise ArgumentError(
                f"--text: expected one column or two with a comma, got {len(self.text)}."
            )
        self.training(1)

    def training(self, texts: int) -> TrainingSettings:
        """The training on so many texts; held-out texts are judged, and the state is kept, once a pass or more often.

        Args:
            texts: to learn from.

        Returns:
            AdamW, with warm-up over a tenth of the steps.

        Raises:
            ArgumentError: a learning rate that is no number above 0.
        """
        each = -(-texts // self.batch_size)
        return TrainingSettings(
            steps=-(-self.epochs * texts // self.batch_size),
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warmup=0.1,
            weight_decay=0.01,
            evaluate_every=each,
            checkpoint_every=min(each, 100),
        )
