"""Chapter Start here."""
