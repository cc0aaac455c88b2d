"""Algorithms as sequences of events: each function returns a Trace for steppers and figures."""
