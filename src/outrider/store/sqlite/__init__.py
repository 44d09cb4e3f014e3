"""The embedded engine: one file, any number of processes on one machine."""
