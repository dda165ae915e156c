"""What goes from pretrained models, and what the rest is then worth."""

STUDIES = {
    "simplify-pretrained": "simplify_pretrained",
}
"""Name → module of this room that holds the study as `STUDY`."""
