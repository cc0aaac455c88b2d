"""Nodes and their processes, failures, and what is saved against them."""
