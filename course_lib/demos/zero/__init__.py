"""ZeRO: program and versions; step_memory uses the versions as well."""
