"""Demos of chapter 16."""
