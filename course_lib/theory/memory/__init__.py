"""The memory of one GPU: model states, activations, buffers, and their peak."""
