"""Collectives made of messages between ranks."""

from course_lib.scratch.collectives import peers, ring, tree

__all__ = ["peers", "ring", "tree"]
