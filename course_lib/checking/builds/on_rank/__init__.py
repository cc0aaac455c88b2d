"""What the checks of builds run on ranks. These modules load torch: import them in functions."""
