"""The guide to the blocks: its code runs, and its drawing is that of the presets."""

import re
import runpy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "blocks.md").read_text(encoding="utf-8")


def test_the_code_of_the_guide_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    exec("\n".join(blocks), {})


def test_every_preset_is_in_the_guide() -> None:
    import hessblocks as hb

    assert all(f"`{name}`" in GUIDE for name in hb.PRESETS)


def test_the_drawing_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_blocks.py"))
    assert script["drawing"]() == (ROOT / "docs" / "blocks.svg").read_text(encoding="utf-8")


def drawn_with(slots: Iterable[str]) -> str:
    import hessblocks as hb
    from hessblocks.blocks import with_slots
    from hessblocks.models import draw_blocks

    return draw_blocks({"one": with_slots(hb.preset("pre-ln"), list(slots))})


def test_a_slot_that_the_drawing_does_not_know_is_named() -> None:
    import hessblocks as hb
    from hessblocks.blocks import Attention, Dense
    from hessblocks.models import draw_blocks

    @dataclass(frozen=True, kw_only=True)
    class Sinking(Attention, kind="sinking"):
        """Attention with a slot of somebody's own."""

        sink: Dense | None = None

    plain = hb.preset("pre-ln")
    own = replace(plain, attention=Sinking(sink=Dense()))
    assert "sinking" in draw_blocks({"one": own})
    assert draw_blocks({"one": own}) != draw_blocks({"one": plain})


def test_a_drawing_goes_on_in_the_next_row() -> None:
    import hessblocks as hb
    from hessblocks.models import draw_blocks

    drawn = draw_blocks({name: hb.preset(name) for name in ("pre-ln", "sas", "sas-p")}, columns=2)
    assert 'width="352" height="744"' in drawn
    names = re.findall(r'class="name" x="(\d+)" y="(\d+)"[^>]*>([a-z].*?)<', drawn)
    assert names == [("88", "18", "pre-ln"), ("264", "18", "sas"), ("88", "390", "sas-p")]


def test_a_drawing_names_what_a_block_has() -> None:
    import hessblocks as hb
    from hessblocks.models import draw_blocks

    slots = ["attention.window=64", "attention.gate=dense", "mlp.gated=true", "mlp.activation=gelu"]
    drawn = draw_blocks(
        {
            "<mine>": hb.build(
                "pre-ln", depth=1, width=16, heads=2, vocab_size=9, context=8, slots=slots
            ).config.block_config
        }
    )
    assert {"&lt;mine&gt;", "window 64, gate", "GEGLU", "A"} <= set(
        re.findall(r">([^<]+)</text>", drawn)
    )
    plain = drawn_with([])
    for slots, words in {
        ("attention.temperature=2.0",): "temperature 2.0",
        ("position=learned",): "learned-position",
        ("mlp.activation=relu-squared",): "activation relu-squared",
        ("norm=layer",): "layer-norm",
        ("attention.scores=linear", "attention.temperature=3.0"): "scores linear, temperature …",
    }.items():
        assert drawn_with(slots) != plain, slots
        assert words in drawn_with(slots), slots
    long = draw_blocks({"pre-ln+sas-p+sas-p-no-norm": hb.preset("sas")})
    assert "pre-ln+sas-p+sas-p-n…" in long
