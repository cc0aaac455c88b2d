"""Shared code of the checks of builds; each chapter has its own builds in `builds/`."""
