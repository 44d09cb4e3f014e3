"""Grid games: FrozenLake and Sokoban, levels drawn from a seed and always solvable."""

from outrider.env.games.frozen_lake import FrozenLakeConfig, FrozenLakeEnvironments
from outrider.env.games.sokoban import (
    LargerSokobanEnvironments,
    SimpleSokobanEnvironments,
    SokobanConfig,
    SokobanDifferentGridVocabEnvironments,
)

__all__ = [
    "FrozenLakeConfig",
    "FrozenLakeEnvironments",
    "LargerSokobanEnvironments",
    "SimpleSokobanEnvironments",
    "SokobanConfig",
    "SokobanDifferentGridVocabEnvironments",
]
