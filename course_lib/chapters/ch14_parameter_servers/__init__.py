"""Chapter Parameter servers and RPC."""
