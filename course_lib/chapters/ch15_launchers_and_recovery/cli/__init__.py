"""Subcommands of `course` for chapter 15."""
