"""Workers: claim, run attempts, heartbeat, drain, as tasks or as processes."""

from outrider.runner.attempt import StageLimits
from outrider.runner.runner import Runner, RunnerConfig
from outrider.runner.workers import local_workers

__all__ = ["Runner", "RunnerConfig", "StageLimits", "local_workers"]
