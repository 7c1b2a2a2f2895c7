"""Small C++ kernels where Python is too slow, compiled when first used; everything works without them."""

__all__: list[str] = []
