"""What a trainer eats: trajectories as samples, groups as batches, advantages, and files of them."""

from outrider.train.advantage import AdvantageRule, Advantages, Estimator, GroupKey, Scale, Weighting, advantages_of
from outrider.train.batch import Batch, Group, TokenAccount
from outrider.train.sample import Sample, SampledTrajectory, SampleReport, TextTurn
from outrider.train.samples import sampled, samples_of

__all__ = [
    "AdvantageRule",
    "Advantages",
    "Batch",
    "Estimator",
    "Group",
    "GroupKey",
    "Sample",
    "SampleReport",
    "SampledTrajectory",
    "Scale",
    "TextTurn",
    "TokenAccount",
    "Weighting",
    "advantages_of",
    "sampled",
    "samples_of",
]
