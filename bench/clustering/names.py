"""What the systems and cases of CLUSTER are called."""

US, LOCAL = "outrider", "outrider local"
"""On Ray, and without it: worker processes of its own."""

US_TENSOR, LOCAL_TENSOR = "outrider send_tensor", "outrider local send_tensor"
RAY = "raw ray"
QUEUE = "ray.util.queue"
STORE = "ray object store"
STORE_COPY = "ray object store, copied out"
MP_QUEUE = "multiprocessing.Queue"
RLINF, RLINF_TENSOR = "rlinf-0.3.0", "rlinf-0.3.0 send_tensor"
GLOO = "torch gloo"
COPY = "numpy copy"
COPY_FRESH = "numpy copy to a new array"

SYNC, ASYNC, MANY = "sync", "async", "outstanding=200"
N_MANY = 200
SINGLE, FOUR, BATCH, PIPELINED = "1to1", "4to1", "batch=32", "async=64"
N_PRODUCERS = {SINGLE: 1, FOUR: 4, BATCH: 1, PIPELINED: 1}
AT_ONCE = {SINGLE: 1, FOUR: 1, BATCH: 32, PIPELINED: 64}
"""How many items are on their way at once from one process."""

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}

CALL_DIES, RECV_DIES, ASYNC_RECV_DIES, CHANNEL_DIES = "call", "recv", "async recv", "channel get"
HANG_SECONDS = 20.0
