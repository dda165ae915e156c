"""Slots by name: what a path changes, and that nothing is changed silently."""

from dataclasses import dataclass

import pytest

import hessblocks as hb
from hessblocks.blocks import DyT, Identity, Position, RotaryPosition, preset, with_slots
from hessblocks.errors import ArgumentError

PRE_LN = preset("pre-ln", width=8, heads=2)


def changed(*slots):
    return with_slots(PRE_LN, slots)


def test_a_path_changes_its_field_and_no_other() -> None:
    attention = PRE_LN.attention
    expected = PRE_LN.replace(
        attention=attention.replace(query=attention.query.replace(init="zeros"))
    )
    assert changed("attention.query.init=zeros") == expected
    assert changed("attention.query.init = zeros ") == expected
    assert with_slots(PRE_LN, {"attention.query.init": "zeros"}) == expected
    assert changed() == PRE_LN


@pytest.mark.parametrize(
    ("slots", "field", "expected"),
    [
        (("position=rotary",), "position", RotaryPosition()),
        (("position=rotary-position",), "position", RotaryPosition()),
        (("position.base=500", "position=rotary"), "position", RotaryPosition(base=500)),
        (("norm=dyt", "norm.scale=0.25"), "norm", DyT(scale=0.25)),
        (("first_norm=none",), "first_norm", None),
        (("key_value_heads=1",), "key_value_heads", 1),
        (("mlp.gated=true",), "mlp", PRE_LN.mlp.replace(gated=True)),
    ],
)
def test_kinds_numbers_and_words_are_read(slots, field, expected) -> None:
    assert getattr(changed(*slots), field) == expected


def test_values_from_python_need_no_words() -> None:
    slots = {
        "position": RotaryPosition(),
        "attention.value": {"kind": "identity"},
        "mlp.gated": True,
    }
    block = with_slots(PRE_LN, slots)
    assert (block.position, block.attention.value) == (RotaryPosition(), Identity())
    assert block.mlp.gated is True


def test_sizes_are_checked_with_the_position_that_slots_set() -> None:
    """Two heads of three entries, which rotary positions, the default, could not turn."""
    odd = {"depth": 1, "vocab_size": 9, "context": 4, "width": 6, "heads": 2}
    for given in ("pre-ln", "modern", PRE_LN):
        for slot, kind in (("position=alibi", "alibi-position"), ("position=no", "no-position")):
            model = hb.build(given, slots=[slot], **odd)
            assert model.config.blocks[0].position.kind == kind
    assert hb.build("sas[position=learned]", **odd).config.blocks[0].width == 6
    partly = hb.build("pre-ln", slots=["position.share=0.7"], **odd)
    assert partly.config.blocks[0].position == RotaryPosition(share=0.7)
    for given in ("pre-ln", PRE_LN):
        with pytest.raises(ArgumentError, match="need an even head width"):
            hb.build(given, **odd)


def test_changes_that_need_each_other_are_made_at_once() -> None:
    assert changed("layout=parallel", "mlp_branch.skip=0").layout == "parallel"
    with pytest.raises(ArgumentError, match="mlp_branch's skip"):
        changed("layout=parallel")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("slot", "message"),
    [
        ("mlp.gated=yes", "mlp.gated: expected true or false, got 'yes'."),
        ("mlp.gated=1", "mlp.gated: expected true or false, got '1'."),
        ("heads", "--set: expected SLOT=VALUE, such as position=rotary, got 'heads'."),
        ("=1", "--set: expected SLOT=VALUE"),
        ("attention.=x", "--set: expected SLOT=VALUE"),
        ("position..base=5", "--set: expected SLOT=VALUE"),
        (
            "key_value_heads=1.5",
            "key_value_heads: expected a whole number or none, got '1.5'.",
        ),
        ("key_value_heads=true", "key_value_heads: expected a whole number or none"),
        ("attention.query.std=wide", "dense: std: expected fan-in or a number above 0, got 'wide'"),
        (
            "attention.query.std=true",
            "attention.query.std: expected a number or a word, got 'true'",
        ),
        ("attention.query.std=NaN", "std: expected fan-in or a number above 0, got nan"),
        (
            "attention.querry.init=zeros",
            "field of attention: 'querry' is unknown; did you mean",
        ),
        ("position=rotating", "position: 'rotating' is unknown"),
        ("attention.query=rotary", "attention.query: 'rotary' is unknown"),
        ("position=none", "position: 'none' is unknown"),
        ("attention.shaping.alpha=2", "attention.shaping: holds None, which has no fields"),
        ("width=16", "width: is a size, which presets depend on, not a slot; give it as width="),
    ],
)
def test_what_does_not_fit_is_one_sentence(slot: str, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        changed(slot)
    assert str(raised.value).startswith(message) or message in str(raised.value)


@pytest.mark.bad_input
def test_a_path_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ArgumentError, match="position: given twice"):
        changed("position=rotary", "position=no")
    with pytest.raises(ArgumentError, match="position: given twice"):
        hb.build("pre-ln", width=8, heads=2, position="no", slots=["position=rotary"])
    for slots in ("position=rotary", 7):
        with pytest.raises(ArgumentError, match="expected several texts or a mapping"):
            with_slots(PRE_LN, slots)
    for slots in ({1: "x"}, [("a",)], {"a..b": 1}, [7]):
        with pytest.raises(ArgumentError, match="expected SLOT=VALUE"):
            with_slots(PRE_LN, slots)
    assert with_slots(PRE_LN, None) == PRE_LN


@dataclass(frozen=True, kw_only=True)
class Stretched(Position, kind="stretched-position"):
    """A part of a user's: a field without a default, and one that no word can give."""

    factor: float
    ends: tuple[int, int] = (0, 1)


@pytest.mark.bad_input
def test_parts_of_the_user_that_no_word_can_give_are_refused() -> None:
    with pytest.raises(ArgumentError, match="stretched-position has no defaults"):
        changed("position=stretched")
    mine = with_slots(PRE_LN, {"position": Stretched(factor=2.0)})
    assert with_slots(mine, ["position.factor=3"]).position == Stretched(factor=3.0)
    with pytest.raises(ArgumentError, match=r"position\.ends: can only be given inside a part"):
        with_slots(mine, ["position.ends=1"])


def test_build_takes_them_and_the_saved_model_has_them(tmp_path) -> None:
    sizes = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 11, "context": 4}
    slots = {"attention.query.init": "zeros"}
    model = hb.build("pre-ln", **sizes, position="rotary", slots=slots)
    assert not model.model.layers[0].attention.query.weight.any()
    assert not hasattr(model.model.position_embedding, "weight")
    model.save_pretrained(tmp_path)
    block = type(model).from_pretrained(tmp_path).config.block
    assert block["position"]["kind"] == "rotary-position"
    assert block["attention"]["query"]["init"] == "zeros"
