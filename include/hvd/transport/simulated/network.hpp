// hvd/transport/simulated/network.hpp: a network in numbers, the cost of messages on it, and the options and results of
// a simulation; a part of simulated.hpp.
#pragma once

#include <hvd/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI {

/// A network of hosts, in seconds and bytes per second. Ranks 0 to ranks_per_host - 1 are on host 0, and so on. The
/// defaults are a plausible cluster with one rank a host, not a measurement.
///
/// A message of n bytes between idle ranks takes latency + overhead + n / bandwidth: alpha + n beta of the literature,
/// with alpha = latency + overhead. The latency is spent on the way and occupies no rank; for the rest of the time the
/// message occupies the sending rank's way out and the receiving rank's way in, one message after the other. The two
/// directions of a rank are independent. (R. W. Hockney, 1994, for alpha and beta; A. Alexandrov et al., "LogGP", 1995,
/// for the overhead apart from the latency: with an overhead of 0, messages cut into ever smaller pieces would cost no
/// more.)
///
/// All ranks of a host share its uplink, one in each direction. Messages take their turn in the order of virtual time,
/// and several that are slower than the uplink pass at the same time.
struct network {
  /// Messages between two ranks of a host, or of two hosts.
  struct level {
    double latency = 0;                                          ///< s; at least 0
    double bandwidth = std::numeric_limits<double>::infinity();  ///< bytes/s of a rank; more than 0
    double overhead = 0;                                         ///< s; at least 0
  };
  int ranks_per_host = 1;                 ///< at least 1
  level inside{200e-9, 10e9, 100e-9};     ///< through memory
  level between{1.5e-6, 12.5e9, 500e-9};  ///< 100 Gbit/s
  double uplink = 0;                      ///< bytes/s of a host in each direction; 0 or infinity: no limit
  double reduction_rate = 10e9;           ///< bytes/s of result, of a kernel with two inputs; more than 0
};

/// The options of a simulation.
struct simulation_options {
  /// True if messages carry bytes, until a rank changes it by SimulatedTransport::payload. If not, the buffers of
  /// messages and of `charged` reductions are neither written nor read, and may be any address: for lengths times ranks
  /// that exceed any memory.
  bool payload = true;
  /// The stack of a rank; 16 KiB to 1 GiB. Pages that are never touched cost nothing.
  std::size_t stack_bytes = std::size_t{256} << 10;
};

/// The result of a simulation.
struct simulation {
  struct traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };
  double seconds = 0;                ///< virtual time when the last rank's function returned
  std::vector<double> rank_seconds;  ///< the same of each rank
  traffic inside, between;           ///< messages between ranks of one host, and of two
};

namespace detail {

[[noreturn]] inline void refuse_simulation(std::string_view what, double value, const char* allowed) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  throw error(error_kind::invalid_argument, "simulate: " + std::string(what) + " is " + text + "; allowed: " + allowed);
}

inline void check(const network& net) {
  const auto time = [](std::string_view what, double v) {
    if (!(v >= 0 && std::isfinite(v))) refuse_simulation(what, v, "0 or more seconds");
  };
  const auto rate = [](std::string_view what, double v) {
    if (!(v > 0)) refuse_simulation(what, v, "bytes per second above 0, or infinity");
  };
  if (net.ranks_per_host < 1) refuse_simulation("ranks_per_host", net.ranks_per_host, "1 or more");
  time("inside.latency", net.inside.latency);
  time("inside.overhead", net.inside.overhead);
  rate("inside.bandwidth", net.inside.bandwidth);
  time("between.latency", net.between.latency);
  time("between.overhead", net.between.overhead);
  rate("between.bandwidth", net.between.bandwidth);
  if (!(net.uplink >= 0))
    refuse_simulation("uplink", net.uplink, "bytes per second above 0, or 0 or infinity for none");
  rate("reduction_rate", net.reduction_rate);
}

/// The times at which parts of the network become free. All calls come in the order of virtual time: first come, first
/// served.
class wires {
 public:
  wires(int ranks, const network& net)
      : net_(net), in_(static_cast<std::size_t>(ranks)), hosts_(static_cast<std::size_t>(host(ranks - 1)) + 1),
        per_byte_inside_(1 / net.inside.bandwidth), per_byte_between_(1 / net.between.bandwidth) {
    if (net.uplink > 0) per_byte_uplink_ = 1 / net.uplink;
    per_byte_between_ = std::max(per_byte_between_, per_byte_uplink_);
  }

  [[nodiscard]] int host(int rank) const noexcept { return rank / net_.ranks_per_host; }
  [[nodiscard]] bool crosses(int from, int to) const noexcept { return host(from) != host(to); }
  /// True if a message shares the uplink with messages of other ranks.
  [[nodiscard]] bool shares(bool crossing) const noexcept { return crossing && per_byte_uplink_ > 0; }
  [[nodiscard]] double latency(bool crossing) const noexcept {
    return crossing ? net_.between.latency : net_.inside.latency;
  }
  /// The time for which a message occupies each of the two ranks.
  [[nodiscard]] double busy(bool crossing, std::size_t bytes) const noexcept {
    const auto n = static_cast<double>(bytes);
    return crossing ? net_.between.overhead + n * per_byte_between_ : net_.inside.overhead + n * per_byte_inside_;
  }

  /// The time when a message that is ready at `at` enters the uplink of the host of `from`.
  double depart(double at, int from, std::size_t bytes) noexcept {
    return through(hosts_[static_cast<std::size_t>(host(from))].out, at, bytes);
  }
  /// The time when the last byte of a message is received, if its first byte reaches the host of `to` at `at`.
  double arrive(double at, int to, bool crossing, std::size_t bytes) noexcept {
    if (shares(crossing)) at = through(hosts_[static_cast<std::size_t>(host(to))].in, at, bytes);
    double& free = in_[static_cast<std::size_t>(to)];
    return free = std::max(at, free) + busy(crossing, bytes);
  }

 private:
  /// A rank's message is no faster than the uplink, which carries several at once. So it begins, at `at` or later, so
  /// late that it does not end before the uplink has moved its bytes and those of all messages before it.
  double through(double& free, double at, std::size_t bytes) noexcept {
    free = std::max(at, free) + static_cast<double>(bytes) * per_byte_uplink_;
    return std::max(at, free - busy(true, bytes));
  }

  struct ways {
    double out = 0, in = 0;
  };
  network net_;
  std::vector<double> in_;   // of each rank: when its way in is free
  std::vector<ways> hosts_;  // of each host: when its uplink is free
  double per_byte_inside_, per_byte_between_;
  double per_byte_uplink_ = 0;
};

/// A rank in an operation of a group. Ranks of the group are counted from 0; `members` are those ranks as the whole
/// simulation counts them.
struct simulated_place {
  std::string_view operation;
  const std::vector<int>& members;
  int rank;
  std::uint32_t context;  // the group's own number, which keeps its messages apart from those of other groups

  [[nodiscard]] int world(int r) const noexcept { return members[static_cast<std::size_t>(r)]; }
  [[nodiscard]] std::string text() const {
    return std::string(operation) + " on rank " + std::to_string(rank) + " of " + std::to_string(members.size()) +
           " (simulated)";
  }
  /// A rank of the simulation as the group counts it; -1 if it is not in the group.
  [[nodiscard]] int counted(int world) const noexcept {
    const auto found = std::find(members.begin(), members.end(), world);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }
};

}  // namespace detail
}  // namespace hvd::inline HVD_ABI
