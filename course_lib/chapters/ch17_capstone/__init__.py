"""Chapter Capstone."""
