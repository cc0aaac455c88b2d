"""The memory of one GPU: states, activations, buffers, and their peak."""
