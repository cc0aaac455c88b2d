"""FLOP of a model, what a chip makes of them, and what they cost."""
