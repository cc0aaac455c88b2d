"""Chapter Gradient accumulation."""
