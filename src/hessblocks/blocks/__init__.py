"""Placeholder docstring for blocks."""
