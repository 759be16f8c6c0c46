// hvd/gpu.hpp: all that hvd has for GPUs: pinning, NCCL as a transport, also below another one, fused tensors, and
// engines with a device.
#pragma once

#include <hvd/engine.hpp>
#include <hvd/engine/nccl.hpp>
#include <hvd/fusion/device.hpp>
#include <hvd/hierarchical/device.hpp>
#include <hvd/pin.hpp>
#include <hvd/transport/nccl.hpp>
