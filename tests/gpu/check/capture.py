"""The program captures CUDA graphs while hvd waits for its tensors and reduces them. tools/gpu-check runs it on one rank."""

import sys

import torch

import hvd.torch as hvd

hvd.init()
torch.cuda.set_device(0)
x = torch.ones(1 << 20, device="cuda")
a = torch.ones(256, 256, device="cuda")
(a @ a).sum().item()
hvd.allreduce_(x, name="warm")
stream = torch.cuda.Stream()
broken, failed, why = 0, 0, []
for i in range(100):
    torch.cuda._sleep(20_000_000)  # some 10 ms, which the collective waits for
    handle = hvd.allreduce_async_(x, name=f"x{i % 4}")
    # Not torch.cuda.graph, which waits for the GPU first.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(capture_error_mode="global")  # no thread may make an unsafe call
            for _ in range(50):
                a.mul_(1)
            other = hvd.allreduce_async_(x, name=f"y{i % 4}") if i % 2 else None
            graph.capture_end()
        except (RuntimeError, ValueError) as e:
            if "CUDA graph" in str(e):  # hvd's refusal
                graph.capture_end()
            else:
                broken += 1
                why.append(f"capture: {str(e).splitlines()[0]}")
    try:
        hvd.synchronize(handle)
    except RuntimeError as e:
        failed += 1
        why.append(f"hvd: {str(e).splitlines()[0]}")
        break
    torch.cuda.synchronize()
print(*why[:4], sep="\n")
print(f"100 captures: {broken} broken; hvd's collectives: {failed} failed", flush=True)
sys.exit(1 if broken or failed else 0)
