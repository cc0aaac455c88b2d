"""Expert parallelism: program, training and versions."""
