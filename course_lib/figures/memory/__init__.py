"""What is in the memory of one GPU, and when."""
