"""The best pre-LN baseline, and the comparison of simplified blocks with it."""

STUDIES = {
    "baseline": "baseline",
    "trial": "trial",
}
"""Name of a study → module of this package with the study as `STUDY`."""
