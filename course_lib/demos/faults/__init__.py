"""Faults: the broken rank, and how it is broken."""
