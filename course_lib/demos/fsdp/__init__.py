"""FSDP: program, versions, prediction; yafsdp uses the last two as well."""
