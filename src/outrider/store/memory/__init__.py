"""The reference engine: plain Python values in one process."""
