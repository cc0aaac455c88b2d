"""Programs of this chapter."""
