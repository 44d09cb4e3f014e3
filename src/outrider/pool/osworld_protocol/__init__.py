"""OSWorld's in-guest HTTP protocol: a computer that is reached by it, and a server of it in front of any computer."""
