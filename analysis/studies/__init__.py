"""What a finished run is asked beyond its own search."""
