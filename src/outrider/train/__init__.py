"""Training data: trajectories as samples, groups as batches, advantages, and files of them."""

from outrider.core.published import Served
from outrider.train.advantage import AdvantageRule, Advantages, Estimator, GroupKey, Scale, Weighting, advantages_of
from outrider.train.batch import Batch, Group, TokenAccount
from outrider.train.config import CustomEnv, EnvManagerConfig, SchedulerConfig, read_scheduler_config
from outrider.train.delivery import RolloutBatch
from outrider.train.filters import GroupResult
from outrider.train.sample import Sample, SampleCall, SampledTrajectory, SampleReport, TextTurn
from outrider.train.samples import sampled, samples_of
from outrider.train.scheduler import RolloutScheduler
from outrider.train.status import SchedulerStatus
from outrider.train.validation import ValidationResult

__all__ = [
    "AdvantageRule",
    "Advantages",
    "Batch",
    "CustomEnv",
    "EnvManagerConfig",
    "Estimator",
    "Group",
    "GroupKey",
    "GroupResult",
    "RolloutBatch",
    "RolloutScheduler",
    "Sample",
    "SampleCall",
    "SampleReport",
    "SampledTrajectory",
    "Scale",
    "SchedulerConfig",
    "SchedulerStatus",
    "Served",
    "TextTurn",
    "TokenAccount",
    "ValidationResult",
    "Weighting",
    "advantages_of",
    "read_scheduler_config",
    "sampled",
    "samples_of",
]
