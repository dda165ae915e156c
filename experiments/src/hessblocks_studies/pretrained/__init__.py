"""Changes of the layers of pretrained models, and the quality of the remaining model."""

STUDIES = {
    "simplified-runs": "simplified_runs",
}
"""Name of a study → module of this package with the study as `STUDY`."""
