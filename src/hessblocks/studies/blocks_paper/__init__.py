"""The figures and tables of "Simplifying Transformer Blocks"."""
