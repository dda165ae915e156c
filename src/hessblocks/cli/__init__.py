"""Placeholder docstring for cli."""
