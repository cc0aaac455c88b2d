"""One step of a story: a picture for each moment of a stepper."""
