"""One pool for many processes: its owner serves it on a Unix socket, workers are its clients."""
