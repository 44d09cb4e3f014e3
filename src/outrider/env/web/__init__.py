"""Web tasks on a real Chromium, which reaches what the task may visit and nothing else."""

from outrider.env.web.environments import WebConfig, WebEnvironments

__all__ = ["WebConfig", "WebEnvironments"]
