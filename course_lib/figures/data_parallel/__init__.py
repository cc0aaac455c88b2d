"""Copies of one model, whole (DDP) or in parts (ZeRO, FSDP)."""
