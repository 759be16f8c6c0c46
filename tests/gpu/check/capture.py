"""The program captures CUDA graphs while hvd reduces its tensors. tools/gpu-check runs it on one rank."""

import sys

import torch

import hvd.torch as hvd

hvd.init()
torch.cuda.set_device(0)
x = torch.ones(64 << 20, device="cuda")
a = torch.ones(256, 256, device="cuda")
(a @ a).sum().item()
hvd.allreduce_(x, name="warm")
broken, failed, why = 0, 0, []
for i in range(300):
    handle = hvd.allreduce_async_(x, name=f"x{i % 4}")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):  # its mode is "global": no thread may make an unsafe call
            for _ in range(50):
                b = a @ a
    except RuntimeError as e:
        broken += 1
        why.append(f"capture: {str(e).splitlines()[0]}")
    try:
        hvd.synchronize(handle)
    except RuntimeError as e:
        failed += 1
        why.append(f"hvd: {str(e).splitlines()[0]}")
        break
print(*why[:4], sep="\n")
print(f"300 captures: {broken} broken; hvd's collectives: {failed} failed", flush=True)
sys.exit(1 if broken or failed else 0)
