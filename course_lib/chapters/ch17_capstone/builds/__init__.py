"""Builds of chapter 17."""
