"""Chapter FLOPs, roofline, MFU."""
