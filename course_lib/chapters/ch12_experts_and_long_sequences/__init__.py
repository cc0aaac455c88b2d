"""Chapter Experts and long sequences."""
