"""Measure the figures and tables of both papers, and our own questions, each by name.

A study is a list of independent points. Finished points are stored as they come, so that a study
goes on where it stopped; points are measured in this process, in several, or on a Ray cluster.
"""

import lazy_loader

# the command line loads this package for its help, where nothing heavy may be imported
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
