"""Which GPU does what: families of parallelism, meshes, plans."""
