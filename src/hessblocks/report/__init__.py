"""Figures, tables and the HTML page of finished or started runs, from their files alone."""
