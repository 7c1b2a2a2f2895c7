"""Small C++ kernels for what Python is too slow for, compiled when first used; everything works without them."""

__all__: list[str] = []
