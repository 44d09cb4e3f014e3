"""What runs inside a guest: the first processes, the agent, and the eyes of the desktop guest."""
