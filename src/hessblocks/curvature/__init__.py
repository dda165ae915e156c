"""Placeholder docstring for curvature."""
