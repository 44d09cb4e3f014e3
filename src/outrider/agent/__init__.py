"""What acts: a user's function, and the context it acts in."""
