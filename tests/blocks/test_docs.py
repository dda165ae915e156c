"""The guide to the blocks: its code runs, and its drawing is that of the presets."""

import re
import runpy
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
    long = draw_blocks({"pre-ln+sas-p+sas-p-no-norm": hb.preset("sas")})
    assert "pre-ln+sas-p+sas-p-n…" in long
