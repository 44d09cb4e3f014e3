"""A policy over engines that take and give token ids: tokenising once, calls collected into batches."""

from outrider.policy.engine.policy import EnginePolicy
from outrider.policy.engine.protocol import BatchEngine, BlockingEngine, TokenReply, TokenRequest
from outrider.policy.engine.statistics import EngineStatistics
from outrider.policy.engine.template import ChatTemplate, Mark, ToolForm, chatml
from outrider.policy.engine.tokenizer import HuggingFaceTokenizer, PartwiseTokenizer, Tokenizer

__all__ = [
    "BatchEngine",
    "BlockingEngine",
    "ChatTemplate",
    "EnginePolicy",
    "EngineStatistics",
    "HuggingFaceTokenizer",
    "Mark",
    "PartwiseTokenizer",
    "TokenReply",
    "TokenRequest",
    "Tokenizer",
    "ToolForm",
    "chatml",
]
