"""Chapter The cluster clinic."""
