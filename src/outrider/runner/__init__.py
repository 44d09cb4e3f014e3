"""Workers: claim, run attempts, heartbeat, drain, as tasks or as processes."""
