"""Placeholder docstring for theory."""
