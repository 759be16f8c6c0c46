// hvd/transport/nccl/options.hpp: the options of an NcclTransport.
#pragma once

#include <hvd/pin.hpp>
#include <hvd/policy.hpp>

#include <algorithm>
#include <chrono>
#include <string>

namespace hvd::inline HVD_ABI {

namespace detail {

/// The number of ranks that the policy allows on one GPU; 0: any number.
inline int ranks_of_pin() { return pinned() ? pinned()->max_ranks : pin_of_environment().max_ranks; }

}  // namespace detail

/// The methods of NCCL to form an average. The results differ in the last bits.
enum class nccl_average {
  /// hvd decides: post_scale.
  automatic,
  /// Sums, and then divides; for fused tensors, in the kernel that unpacks. As on the host; NVLink's switches can do
  /// the additions.
  post_scale,
  /// Multiplies each input by 1/n, rounded to the element type, before it adds: for 16-bit floats whose sum overflows.
  pre_mul,
  /// ncclAvg: as pre_mul for floating-point types; sums and divides for integers.
  nccl_avg,
};

/// The options of an NcclTransport.
struct nccl_options {
  using seconds = std::chrono::duration<double>;
  /// The GPU, by its ordinal among those that the process sees; -1: the calling thread's current GPU, which hvd::pin
  /// chooses.
  int device = -1;
  /// The number of ranks that may use one GPU; 0: any number. The default is that of this thread's pinning (`shared`),
  /// or of HVD_PIN. More than one needs NCCL 2.30, or a NCCL_HOSTID that differs between ranks.
  int ranks_per_device = detail::ranks_of_pin();
  /// The time limit for every wait for other ranks; 0 waits as long as no error is known.
  seconds timeout = failure_policy::from_environment().timeout;
  /// The time limit for the ranks to connect; at least 120 s by default, because each rank may have to load NCCL's
  /// 250 MB from a cold disk.
  seconds start_timeout = std::max(failure_policy::from_environment().start_timeout, seconds(120));
  nccl_average average = nccl_average::automatic;
  /// The fewest and the most thread blocks that NCCL uses; 0: NCCL decides.
  int min_ctas = 0, max_ctas = 0;
  /// The network that NCCL uses between hosts, such as "IB" or "Socket", or a plugin's; empty: NCCL decides.
  std::string network{};
  /// Whether the collectives run before other work of the GPU that is ready at the same time. Other ranks wait for
  /// them.
  bool high_priority = true;
};

}  // namespace hvd::inline HVD_ABI
