"""FSDP: program and versions; yafsdp and step_memory use the versions as well."""
