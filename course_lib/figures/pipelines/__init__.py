"""The stages of a pipeline: what each does and keeps, and when."""
