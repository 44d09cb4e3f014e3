"""A sandbox for Python programs that nobody trusts."""

from outrider.env.sandbox.program import KillReason, Limits, Outcome, Program
from outrider.env.sandbox.sandbox import Sandbox, SandboxKind

__all__ = ["KillReason", "Limits", "Outcome", "Program", "Sandbox", "SandboxKind"]
