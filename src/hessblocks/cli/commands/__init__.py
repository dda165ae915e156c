"""Commands, in one file where their options are alike."""

from hessblocks.cli.commands.presets import presets
from hessblocks.cli.commands.pretrained import curvature, price, quantise, simplify
from hessblocks.cli.commands.report import report
from hessblocks.cli.commands.signal import signal
from hessblocks.cli.commands.training import compare, demo, train

COMMANDS = (quantise, price, simplify, curvature, signal, compare, train, presets, demo, report)
