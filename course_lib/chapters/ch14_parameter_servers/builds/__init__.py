"""What this chapter lets you build."""
