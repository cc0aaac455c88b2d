"""Communication between GPUs: collectives, their traffic and their time."""
