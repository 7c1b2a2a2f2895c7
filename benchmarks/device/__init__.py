"""What a GPU can do with the library: its tests there, and ratios to plain PyTorch (`make gpu`)."""
