"""What is sent between GPUs, over which wires, and how long it takes."""
