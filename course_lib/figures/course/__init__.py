"""The course itself: its map, what you have built, how well you guessed."""
