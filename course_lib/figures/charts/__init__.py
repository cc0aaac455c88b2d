"""Charts of any names and numbers: bars, curves, a number line, stretches of time."""
