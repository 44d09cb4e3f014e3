"""The kinds of machines, one file each."""
