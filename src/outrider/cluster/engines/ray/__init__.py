"""Workers as actors of a Ray cluster. Importing this needs Ray."""

from outrider.cluster.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
