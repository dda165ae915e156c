"""Placeholder docstring for training."""
