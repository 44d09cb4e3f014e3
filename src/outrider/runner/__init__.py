"""Workers: claim, run attempts, heartbeat, drain, as tasks or as processes."""

from outrider.runner.attempt import StageLimits
from outrider.runner.runner import Runner, RunnerConfig

__all__ = ["Runner", "RunnerConfig", "StageLimits"]
