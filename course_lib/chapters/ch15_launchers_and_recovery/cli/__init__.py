"""Subcommands of `course` that this chapter teaches."""
