"""Containers of a docker engine: its API, and commands in a container."""
