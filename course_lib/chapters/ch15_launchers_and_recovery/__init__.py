"""Chapter Launchers, frameworks, recovery."""
