"""Test forecasts of the cost of weight changes, and compare with other tools' scores."""

STUDIES = {"bill": "facts"}
"""Name of a study → module of this package with the study as `STUDY`."""
