"""Questions that the two papers raise together."""

STUDIES = {
    "simplification": "simplification",
    "optimisers": "optimisers",
    "temperature": "temperature",
    "edge-of-stability": "edge_of_stability",
    "ladder": "ladder",
}
"""Name of a study → module of this package with the study as `STUDY`."""
