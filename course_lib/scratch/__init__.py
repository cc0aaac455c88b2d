"""Each technique, written to be read."""

from course_lib.scratch import accumulation, gpt, ledger, loop, master_copy

__all__ = ["accumulation", "gpt", "ledger", "loop", "master_copy"]
