"""Tensor parallelism: program and versions; fsdp_tp uses them as well."""
