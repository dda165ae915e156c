"""Removal of parts from pretrained models, and the quality of the remaining model."""

STUDIES = {
    "simplify-pretrained": "simplify_pretrained",
    "simplified-runs": "simplified_runs",
}
"""Name of a study → module of this package with the study as `STUDY`."""
