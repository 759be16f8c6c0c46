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
broken, failed, refused, why = 0, 0, 0, []
for i in range(100):
    torch.cuda._sleep(20_000_000)  # some 10 ms, which the collective waits for
    handle = hvd.allreduce_async_(x, name=f"x{i % 4}")
    graph = torch.cuda.CUDAGraph()
    # Not torch.cuda.graph, which waits for the GPU first. In this mode no thread may make an unsafe call.
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="global")
        try:
            for _ in range(50):
                a.mul_(1)
            if i % 2:
                hvd.allreduce_async_(x, name="captured")
                why.append("hvd accepted a collective in a capture")
                failed += 1
        except ValueError as e:
            refused += "CUDA graph" in str(e)
        except RuntimeError as e:
            why.append(f"in the capture: {str(e).splitlines()[0]}")
        try:
            graph.capture_end()
        except RuntimeError as e:
            broken += 1
            why.append(f"capture: {str(e).splitlines()[0]}")
    try:
        hvd.synchronize(handle)
        torch.cuda.synchronize()
    except RuntimeError as e:
        failed += 1
        why.append(f"hvd: {str(e).splitlines()[0]}")
        break
print(*why[:4], sep="\n")
print(f"100 captures: {broken} broken; hvd: {failed} failed, {refused} of 50 refused in a capture", flush=True)
sys.exit(0 if (broken, failed, refused) == (0, 0, 50) else 1)
