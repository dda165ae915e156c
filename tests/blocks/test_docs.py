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
