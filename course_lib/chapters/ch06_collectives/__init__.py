"""Chapter Collectives and the α–β model."""
