"""Measure the figures and tables of both papers, and our own questions, each by name.

A study is a list of independent points. Finished points are stored immediately, so that a study
continues where it stopped. Points run in this process, in several processes or on a Ray cluster.
"""

import lazy_loader

# the command line imports this package for its help, so that heavy imports are not allowed here
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
