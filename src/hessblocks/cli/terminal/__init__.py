"""Tables and progress bars on the terminal."""

from hessblocks.cli.terminal.bars import counter, make_progress, task_bars
from hessblocks.cli.terminal.console import plain_table, show, sizes_table
from hessblocks.cli.terminal.curvature_screen import curvature_table, summary_lines
from hessblocks.cli.terminal.signal_screen import described, lines
from hessblocks.cli.terminal.sizes import block_sizes
from hessblocks.cli.terminal.work import carry_out
