"""The label that no loss counts, one for models, data and curvature."""

IGNORED = -100
"""Label of a token that the loss leaves out, as in torch and transformers."""
