"""What runs inside a desktop: the standard library is all it has, so nothing outside this package is imported."""
