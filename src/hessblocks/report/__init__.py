"""Placeholder docstring for report."""
