"""The style and the script of a timeline's page."""
