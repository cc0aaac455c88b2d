"""Chapter ZeRO 1, 2, 3."""
