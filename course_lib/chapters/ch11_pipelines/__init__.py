"""Chapter Pipeline parallelism."""
