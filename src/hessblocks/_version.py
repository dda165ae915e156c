"""Version number; the build reads it from this file without importing torch."""

__version__ = "0.1.0"
