"""One file per command."""

from hessblocks.cli.commands.compare import compare
from hessblocks.cli.commands.curvature import curvature
from hessblocks.cli.commands.demo import demo
from hessblocks.cli.commands.presets import presets
from hessblocks.cli.commands.price import price
from hessblocks.cli.commands.quantise import quantise
from hessblocks.cli.commands.report import report
from hessblocks.cli.commands.signal import signal
from hessblocks.cli.commands.simplify import simplify
from hessblocks.cli.commands.train import train

COMMANDS = (quantise, price, simplify, curvature, signal, compare, train, presets, demo, report)
