"""Chapter Activations and recomputation."""
