"""Tables and progress bars on the terminal; importing this is fast."""

from hessblocks.cli.terminal.bars import make_progress, task_bars
from hessblocks.cli.terminal.console import (
    NARROWEST,
    WIDE,
    comparison_table,
    plain_table,
    show,
)
from hessblocks.cli.terminal.signal_screen import described, lines
