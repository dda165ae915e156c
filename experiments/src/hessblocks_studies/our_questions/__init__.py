"""Questions that the two papers raise together."""

STUDIES = {
    "simplification": "simplification",
    "optimisers": "optimisers",
    "temperature": "temperature",
    "edge-of-stability": "edge_of_stability",
    "ladder": "ladder",
}
"""Name → module of this room that holds the study as `STUDY`."""
