"""What tests and demos need and users may use too: a clock to move, agents to try things with."""
