"""A killed rank: the program, and what torchrun starts for it."""
