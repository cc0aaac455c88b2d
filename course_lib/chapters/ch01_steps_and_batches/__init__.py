"""Chapter Steps and batches."""
