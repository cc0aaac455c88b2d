"""A training step: its batch, its time, and what a failure costs."""
