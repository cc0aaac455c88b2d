"""What several demos share: options, the training, the comparison with one process."""
