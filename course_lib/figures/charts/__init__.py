"""Charts of any names and numbers: a number line, stretches of time, events."""
