"""Questions that the two papers raise together."""

STUDIES = {
    "temperature": "temperature",
    "ladder": "ladder",
}
"""Name of a study → module of this package with the study as `STUDY`."""
