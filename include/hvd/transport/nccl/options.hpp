// hvd/transport/nccl/options.hpp: the options of an NcclTransport.
#pragma once

#include <hvd/pin.hpp>
#include <hvd/policy.hpp>

#include <algorithm>
#include <chrono>
#include <string>

namespace hvd::inline HVD_ABI {

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

/// The options of an NcclTransport. Programs that pass none get those of `from_environment`.
struct nccl_options {
  using seconds = std::chrono::duration<double>;
  /// The GPU, by its ordinal among those that the process sees; -1: the calling thread's current GPU, which hvd::pin
  /// chooses.
  int device = -1;
  /// The number of ranks that may use one GPU; 0: any number. More than one needs NCCL 2.30, or a NCCL_HOSTID that
  /// differs between ranks.
  int ranks_per_device = 1;
  /// The time limit for every wait for other ranks; 0 waits as long as no error is known.
  seconds timeout = failure_policy{}.timeout;
  /// The time limit for the ranks to connect; longer than on the host, because each rank may have to load NCCL's 250 MB
  /// from a cold disk.
  seconds start_timeout{120};
  nccl_average average = nccl_average::automatic;
  /// The fewest and the most thread blocks that NCCL uses; 0: NCCL decides.
  int min_ctas = 0, max_ctas = 0;
  /// The network that NCCL uses between hosts, such as "IB" or "Socket", or a plugin's; empty: NCCL decides.
  std::string network{};
  /// Whether the collectives run before other work of the GPU that is ready at the same time. Other ranks wait for
  /// them.
  bool high_priority = true;

  /// HVD_TIMEOUT; HOROVOD_START_TIMEOUT if it is longer than the default; and how many ranks may use one GPU: as this
  /// thread is pinned (`shared`), or as HVD_PIN says. Errors: those of hvd::pin for HVD_PIN, and invalid_argument.
  static nccl_options from_environment(const config::lookup& variable = detail::variable_of_environment) {
    nccl_options o;
    const auto host = failure_policy::from_environment(variable);
    o.timeout = host.timeout;
    o.start_timeout = std::max(host.start_timeout, o.start_timeout);
    o.ranks_per_device =
        detail::pinned() ? detail::pinned()->max_ranks : detail::pin_of_environment(variable).max_ranks;
    return o;
  }
};

}  // namespace hvd::inline HVD_ABI
