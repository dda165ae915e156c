"""Placeholder docstring for models."""
