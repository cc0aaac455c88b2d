"""Saving and loading in shards: the program, and two versions, which elastic uses as well."""
