"""qkprism."""
