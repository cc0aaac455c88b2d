"""Chapter FSDP and YaFSDP."""
