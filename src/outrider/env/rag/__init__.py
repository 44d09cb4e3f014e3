"""Questions over a corpus: an index on disk, a search tool, an answer that is compared."""

from outrider.env.rag.config import EmbeddingsConfig, RagConfig
from outrider.env.rag.environments import RagEnvironments

__all__ = ["EmbeddingsConfig", "RagConfig", "RagEnvironments"]
