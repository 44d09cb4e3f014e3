"""What the page of a run is dressed in: a style sheet and a short script."""
