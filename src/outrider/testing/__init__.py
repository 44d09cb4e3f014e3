"""What tests and demos need and users may use too: a clock to move, agents to try things with."""

from outrider.testing.clock import FakeClock, eventually

__all__ = ["FakeClock", "eventually"]
