"""Diagonal blocks of the Gauss-Newton matrix, and what they leave out."""

STUDIES = {
    "between": "between",
}
"""Name of a study → module of this package with the study as `STUDY`."""
