"""A training step: its batch and its time."""
