"""What is sent between GPUs: collectives, their traffic and their time."""
