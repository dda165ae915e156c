"""The size of an allocation whose fused weights have a format each."""

import pytest
import torch

import hessblocks as hb
from hessblocks.inspection.quantising import _apart
from tests.models.gguf_files import tiny_llama


def test_apart_and_fused_cost_the_same_where_nothing_is_fused() -> None:
    pytest.importorskip("libgguf")
    model = tiny_llama()
    ids = torch.randint(model.config.vocab_size, (8, 8))
    edits = (hb.in_format("gguf:Q4_0"), hb.in_format("gguf:Q8_0"))
    bill = hb.price(hb.Problem(model, {"input_ids": ids}), hb.change_each(model, *edits), samples=8)
    chosen = bill.allocate(bits=6)
    assert _apart(bill, chosen.bytes) == pytest.approx(chosen.total.forecast.value, rel=1e-6)
