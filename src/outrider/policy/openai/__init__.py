"""The model client for any OpenAI-compatible endpoint."""

from outrider.policy.openai.policy import OpenAIPolicy, open_openai_policy

__all__ = ["OpenAIPolicy", "open_openai_policy"]
