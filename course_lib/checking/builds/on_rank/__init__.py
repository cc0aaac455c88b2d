"""Code that the checks of builds run on ranks. It imports torch: import it inside functions."""
