"""Expert parallelism: program, training, versions, prediction."""
