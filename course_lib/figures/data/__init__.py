"""Samples, micro-batches, batches and epochs."""
