"""The command line; commands whose options are alike share a file.

Other distributions build their commands with `options`, `Names`, `interruptible` and
`hessblocks.cli.terminal`.
"""

from hessblocks.cli import options
from hessblocks.cli.app import main
from hessblocks.cli.extensions import FolderKind
from hessblocks.cli.interruption import interruptible
from hessblocks.cli.options import Names
