"""The Hugging Face Trainer as both stages use it: no files of its own, gains and norms undecayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments, default_data_collator

from hessblocks.training.base import one_device
from hessblocks.training.guarded import GuardedTrainer


class PlainTrainer(GuardedTrainer):
    """A Trainer with a collator of its own for evaluation.

    Args:
        evaluation_collator: puts evaluation examples together, where they need no masking.
        **given: as `transformers.Trainer` takes them.
    """

    def __init__(
        self, *, evaluation_collator: Callable[..., Any] = default_data_collator, **given: Any
    ) -> None:
        super().__init__(**given)
        self._evaluation_collator = evaluation_collator

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the evaluation examples, in order."""
        data: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        return DataLoader(
            data,
            batch_size=self.args.per_device_eval_batch_size,
            collate_fn=self._evaluation_collator,
        )


def arguments(folder: Path | str, **given: Any) -> TrainingArguments:
    """Quiet arguments, everything on one device; what `given` says is added.

    Args:
        folder: for the Trainer, which writes nothing there.
        **given: further fields of `transformers.TrainingArguments`.
    """
    made = TrainingArguments(
        output_dir=str(folder),
        lr_scheduler_type="linear",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        log_level="error",
        report_to="none",
        **given,
    )
    return one_device(made)
