"""Placeholder docstring for data."""
