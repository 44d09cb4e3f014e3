"""Machines that are browsers: a Chromium process, the line to it, and the relay by which its holder speaks to it."""
