"""Rank 1 is killed while the main thread of rank 0 waits in the CUDA driver; rank 0 must be told. tools/gpu-check runs it
and reads what it prints: hvdrun reports the rank that was killed, and kills the other after 5 s.

usage: lock.py sync|free|item
"""

import os
import signal
import sys
import time

import torch

import hvd.torch as hvd

hvd.init()
torch.cuda.set_device(0)
how = sys.argv[1]
x = torch.ones(1 << 20, device="cuda")
hvd.allreduce_(x, name="warm")
torch.cuda.synchronize()
if hvd.rank() == 1:
    # A long kernel holds back this rank's part of the collective, which that of rank 0 waits for.
    torch.cuda._sleep(20_000_000_000)
    hvd.allreduce_async_(x, name="last")
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
handle = hvd.allreduce_async_(x, name="last")
time.sleep(0.5)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which hvdrun would end this rank at once
start = time.monotonic()
try:
    if how == "sync":
        torch.cuda.synchronize()
    elif how == "free":
        y = torch.empty(1 << 28, device="cuda")
        del y
        torch.cuda.empty_cache()
    hvd.synchronize(handle)  # returns once it is queued
    if how == "item":
        x.sum().item()
    hvd.allreduce_(x, name="next")
    torch.cuda.synchronize()
    print(f"no error, for {time.monotonic() - start:.2f} s", flush=True)
except Exception as e:
    print(f"error after {time.monotonic() - start:.2f} s: {str(e).splitlines()[0]}", flush=True)
os._exit(0)
