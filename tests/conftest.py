"""Every test runs on one thread, offline, with annotated shapes checked."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
torch.set_warn_always(True)  # or only the first test that meets one of torch's warnings would see it


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same random state."""
    torch.manual_seed(0)
