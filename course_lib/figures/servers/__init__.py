"""Parameter servers: rows of a table, late gradients, the time of an update."""
