"""What only the model itself can answer."""
