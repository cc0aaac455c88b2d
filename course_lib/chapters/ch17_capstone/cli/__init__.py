"""Subcommands of `course` for chapter 17."""
