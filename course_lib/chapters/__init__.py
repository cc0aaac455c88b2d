"""A room for each chapter: its text, its exercises, and all that no other chapter needs."""
