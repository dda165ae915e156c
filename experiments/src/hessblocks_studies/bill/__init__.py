"""Whether forecasts of what changes of weights cost come true, beside others' scores."""

STUDIES = {"bill": "facts"}
"""Name → module of this room that holds the study as `STUDY`."""
