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

COMMANDS = {
    "Train blocks and compare them": {
        demo: "--out runs/demo",
        presets: "--depth 12 --width 768 --heads 12",
        compare: "--presets 'pre-ln-zero,sas[mlp.gated=true]' --tune",
        train: "sas-p --steps 2000 --data FILE_OR_FOLDER",
    },
    "Look into any model": {
        curvature: "preset:sas --parts outer --method sampled --map",
        signal: "--presets pre-ln,skipless-plain,skipless",
        price: "FOLDER --data FILE --round 2,3,4,8 --allocate 3.0",
        quantise: "FOLDER model.gguf --data FILE --size-of Q4_K_M",
        simplify: "FOLDER --data FILE --save 0.15",
    },
    "Show what was found": {
        report: "runs/demo",
    },
}
"""Panel of the help → its commands, each with the arguments of its example."""
