"""What several experiments share, each piece in one place."""
