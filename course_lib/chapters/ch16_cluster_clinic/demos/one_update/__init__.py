"""One update written down, for `course compare`."""
