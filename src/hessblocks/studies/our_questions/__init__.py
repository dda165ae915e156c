"""What the two papers ask together."""

STUDIES = {
    "baseline": "baseline",
    "trial": "trial",
    "simplification": "simplification",
    "optimisers": "optimisers",
    "temperature": "temperature",
    "batch-size": "batch_size",
    "warm-up": "warm_up",
    "edge-of-stability": "edge_of_stability",
}
"""Name → module of this room that holds the study as `STUDY`."""
