"""What is found out about a network on a few rows, before inference."""
