"""What starts the processes of workers: this machine, this process, or Ray."""
