"""Builds of chapter 15."""
