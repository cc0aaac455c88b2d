"""Data files that ship with the course."""
