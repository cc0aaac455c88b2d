"""Builds of chapter 16."""
