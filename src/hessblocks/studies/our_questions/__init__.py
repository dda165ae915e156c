"""What the two papers ask together."""
