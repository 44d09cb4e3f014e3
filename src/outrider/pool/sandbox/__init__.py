"""A sandbox that stays: namespaces by bubblewrap, and a resident program inside that does what it is asked."""
