"""Workers that run rollouts on the nodes of a cluster, for the supervisor of a run."""
