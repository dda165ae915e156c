"""One file a command."""

from hessblocks.cli.commands.check import check
from hessblocks.cli.commands.compare import compare
from hessblocks.cli.commands.curvature import curvature
from hessblocks.cli.commands.demo import demo
from hessblocks.cli.commands.presets import presets
from hessblocks.cli.commands.report import report
from hessblocks.cli.commands.signal import signal
from hessblocks.cli.commands.train import train
from hessblocks.cli.commands.verify import verify

COMMANDS = (
    demo,
    presets,
    compare,
    train,
    curvature,
    signal,
    verify,
    report,
    check,
)
"""In the order in which the help lists them."""
