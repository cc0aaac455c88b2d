"""Subcommands of `course` for chapter 16."""
