"""Code shared by demos: options, training runs, the comparison with one process."""
