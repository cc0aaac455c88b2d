"""Chapter What is in the memory."""
