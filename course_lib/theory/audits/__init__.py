"""Published claims, each recomputed under the source's own assumptions and under the right ones."""
