"""The benchmark of the blocks measures every side at a tiny size, and both attentions agree."""

import pytest

from benchmarks import blocks, layer_kernels, steps
from benchmarks._shaped_attention import measured


def test_the_ladder_measures_every_block() -> None:
    sizes = blocks.Sizes(depth=1, width=32, heads=2, vocab_size=64, context=8, batch=2)
    found = blocks.ladder(sizes, rounds=1)
    for name in blocks.LADDER:
        assert found[name]["tokens_per_second"] > 0
    assert found["sas-p"]["flops_per_token"] < found["pre-ln"]["flops_per_token"]
    assert found["gpt2"]["flops_per_token"] == pytest.approx(found["pre-ln"]["flops_per_token"])
    assert found["pre-ln"]["speed_over_pre_ln"] == 1


def test_steps_of_every_width_are_over_pre_ln() -> None:
    sizes = blocks.Sizes(depth=1, width=32, heads=2, vocab_size=64, context=8, batch=2)
    found = steps.at_width(32, rounds=2, sizes=sizes)
    assert found["sas"]["speed over pre-ln"] > 0
    assert found["sas-p"]["limit by products"] > 1


def test_both_shaped_attentions_give_the_same() -> None:
    found = measured(rounds=1, width=128, tokens=48)
    assert all(figure["largest_difference"] < 1e-5 for figure in found.values())
    assert all(figure["ratio"] > 0 for figure in found.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_a_compiled_layer_of_the_simplified_blocks_has_no_more_launches_than_pre_ln() -> None:
    tiny = {"tokens": 32, "width": 64, "heads": 2}
    found = {n: layer_kernels.counted(n, one_kernel=True, **tiny) for n in ("pre-ln", "sas-p")}
    assert found["sas-p"]["launches"] < found["pre-ln"]["launches"]
    assert found["sas-p"]["bytes on a GPU"] < found["pre-ln"]["bytes"]
