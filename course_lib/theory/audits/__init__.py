"""What published claims come to: each recomputed on its own terms, and on ours."""
