"""Measure the loss Hessian of a transformer, predict what quantising costs, build simpler blocks.

`import hessblocks` registers its models with the Auto classes of Hugging Face transformers;
everything else is imported at its first use. `__init__.pyi` lists the public names.
"""

import lazy_loader

from hessblocks._version import __version__
from hessblocks.auto_classes import announce

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
announce()
