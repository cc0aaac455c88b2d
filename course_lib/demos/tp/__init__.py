"""Tensor parallelism: program, versions, prediction; fsdp_tp uses them as well."""
