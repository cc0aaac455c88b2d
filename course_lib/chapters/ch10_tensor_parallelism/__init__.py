"""Chapter Tensor parallelism."""
