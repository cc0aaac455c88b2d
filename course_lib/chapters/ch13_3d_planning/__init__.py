"""Chapter 3D parallelism and planning."""
