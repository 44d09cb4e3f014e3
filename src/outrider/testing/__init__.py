"""What tests and demos need and users may use too: a clock to move, agents and a model server to try things with."""

from typing import TYPE_CHECKING, Any

from outrider.testing.clock import FakeClock, eventually
from outrider.testing.environment import Conformance, check_environment
from outrider.testing.virtual_time import Deadlock, LoopClock, ScaledLoop, VirtualLoop, run_scaled, run_virtual

if TYPE_CHECKING:
    from outrider.testing.model_server import ModelServer

__all__ = [
    "Conformance",
    "Deadlock",
    "FakeClock",
    "LoopClock",
    "ModelServer",
    "ScaledLoop",
    "VirtualLoop",
    "check_environment",
    "eventually",
    "run_scaled",
    "run_virtual",
]


def __getattr__(name: str) -> Any:
    """The model server brings an HTTP library along, so it is imported by those who use it."""
    if name != "ModelServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outrider.testing.model_server import ModelServer  # noqa: PLC0415

    return ModelServer
