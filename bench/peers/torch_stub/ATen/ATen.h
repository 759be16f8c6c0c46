// bench/peers/torch_stub/ATen/ATen.h: see torch/extension.h.
#pragma once
#include <torch/extension.h>
