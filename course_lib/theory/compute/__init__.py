"""FLOP of a model, the time and money that they take, and rounding errors."""
