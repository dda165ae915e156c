"""Measure the loss Hessian of a transformer, predict what quantising costs, build simpler blocks.

`import hessblocks` tells the Auto classes of Hugging Face transformers of its models; everything
else is imported when it is first used. `__init__.pyi` names what is offered.
"""

import lazy_loader

from hessblocks._version import __version__
from hessblocks.auto_classes import announce

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
announce()
