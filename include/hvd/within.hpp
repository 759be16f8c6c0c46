// hvd/within.hpp: a time limit for one collective.
#pragma once

#include <hvd/algorithm/automatic.hpp>
#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/detail/format.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace hvd::inline HVD_ABI {

namespace detail {

using wait_limit = std::chrono::duration<double>;

/// A transport whose timeout can be read and set.
template <class T>
concept HasTimeout = Transport<T> && requires(T& t, wait_limit limit) {
  t.set_timeout(limit);
  t.set_timeout(t.timeout());
};

/// Sets a transport's timeout, and restores the old one at its end.
template <HasTimeout T>
class limited_waits {
 public:
  limited_waits(T& comm, wait_limit limit) noexcept : comm_(comm), before_(comm.timeout()) { comm.set_timeout(limit); }
  limited_waits(const limited_waits&) = delete;
  limited_waits& operator=(const limited_waits&) = delete;
  ~limited_waits() { comm_.set_timeout(before_); }

 private:
  T& comm_;
  decltype(std::declval<T&>().timeout()) before_;
};

/// The same as an object of one type, for any_transport. Errors: unsupported.
template <class T>
std::shared_ptr<void> shared_limit(T& comm, wait_limit limit) {
  if constexpr (HasTimeout<T>) {
    return std::make_shared<limited_waits<T>>(comm, limit);
  } else {
    fail(error_kind::unsupported, {"within on rank ", comm.rank(), " of ", comm.size(),
                                   ": the transport that this any_transport holds has no timeout"});
  }
}

/// A transport that sets the limit by itself.
template <class T>
concept LimitsWaits = Transport<T> && requires(T& t, wait_limit limit) { t.limit_waits(limit); };

}  // namespace detail

/// `algorithm` with another timeout, for one call: see `within`.
template <class Algorithm = automatic<>>
struct within_limit {
  static constexpr bool rank_ordered = detail::keeps_rank_order<Algorithm>();

  std::chrono::duration<double> limit;  ///< for each wait; 0: no limit
  Algorithm algorithm{};

  friend constexpr bool operator==(const within_limit&, const within_limit&) = default;

  template <Transport T, class Call>
    requires Answers<Algorithm, T, Call> && (detail::HasTimeout<T> || detail::LimitsWaits<T>)
  void operator()(T& t, const Call& c) const {
    const auto limited = limit_waits(t, Call::kind);
    algorithm(t, c);
  }

  /// Sets the limit until the returned object ends. Errors: invalid_argument for a limit below zero, or NaN.
  template <Transport T>
    requires detail::HasTimeout<T> || detail::LimitsWaits<T>
  [[nodiscard]] auto limit_waits(T& t, operation kind) const {
    if (!(limit.count() >= 0)) {
      detail::fail(error_kind::invalid_argument,
                   {name(kind), " on rank ", t.rank(), " of ", t.size(), ": within has a limit of ", limit.count(),
                    " s; allowed: 0 (no limit) and above"},
                   t.rank());
    }
    if constexpr (detail::LimitsWaits<T>) {
      return t.limit_waits(limit);
    } else {
      return detail::limited_waits<T>(t, limit);
    }
  }
};

/// A collective's last argument: `hvd::allreduce(comm, grad, hvd::sum, hvd::within(2s))`, or
/// `hvd::within(2s, hvd::ring{})` for an algorithm by name. During this call `limit` replaces the transport's timeout
/// (failure_policy::timeout, mpi_options::timeout): the longest time that this rank waits for another one to answer.
/// The whole call may take longer, because the limit is for each of its waits. If the time is over, the group has
/// ended, as after any other timeout. Ranks may pass different limits. With 0 there is no limit, as for HVD_TIMEOUT.
///
/// It does not end waits inside MPI: name an algorithm there, such as hvd::ring. SelfTransport, which never waits, and
/// SimulatedTransport, whose waits take virtual time, ignore it.
///
/// Errors: those of the collective; invalid_argument, on this rank alone, for a limit below zero, or NaN; unsupported
/// if an any_transport holds a transport without a timeout.
template <class Algorithm = automatic<>>
constexpr within_limit<Algorithm> within(std::chrono::duration<double> limit, const Algorithm& how = {}) {
  return {limit, how};
}

/// The limit and the algorithm, for messages and bench output.
template <class Algorithm>
std::string name(const within_limit<Algorithm>& a) {
  const auto limit = a.limit.count();
  if constexpr (requires { name(a.algorithm); }) {
    return detail::joined({"within(", limit, " s, ", name(a.algorithm), ")"});
  } else {
    return detail::joined({"within(", limit, " s)"});
  }
}

}  // namespace hvd::inline HVD_ABI
