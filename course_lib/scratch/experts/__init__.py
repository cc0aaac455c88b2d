"""Mixtures of experts, and experts spread over ranks."""

from course_lib.scratch.experts import all_to_all, biased, mixture, router

__all__ = ["all_to_all", "biased", "mixture", "router"]
