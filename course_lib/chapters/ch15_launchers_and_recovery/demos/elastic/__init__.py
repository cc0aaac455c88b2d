"""The demo of a killed rank, and the programs that torchrun starts for it."""
