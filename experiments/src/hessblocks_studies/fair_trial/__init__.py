"""The baseline at its best, and the simplified blocks on trial against it."""

STUDIES = {
    "baseline": "baseline",
    "trial": "trial",
}
"""Name → module of this room that holds the study as `STUDY`."""
