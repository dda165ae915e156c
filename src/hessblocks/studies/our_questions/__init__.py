"""What the two papers ask together."""

STUDIES = {"simplification": "simplification", "adaptivity": "adaptivity"}
"""Name → module of this room that holds the study as `STUDY`."""
