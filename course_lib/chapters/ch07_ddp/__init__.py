"""Chapter From DP to DDP."""
