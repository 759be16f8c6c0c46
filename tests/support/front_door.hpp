// tests/support/front_door.hpp: for tests of one collective: groups of one to three ranks, and errors as text.
#pragma once

#include <hvd/launch.hpp>
#include <hvd/transport/self.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::test {

inline sharing_options with_check(bool check) {
  sharing_options o;
  o.failure.timeout = std::chrono::seconds(20);
  o.failure.check = check;
  return o;
}

/// Runs f(transport) on every rank of the groups that this header is about.
template <class F>
void everywhere(const F& f, bool check = false) {
  SelfTransport alone;
  f(alone);
  for (const int ranks : {2, 3}) thread_run(ranks, f, with_check(check));
}

/// The kind and the sentence of the error that f throws.
template <class F>
doctest::String complaint(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const error& e) {
    return (std::string(name(e.kind())) + ": " + e.what()).c_str();
  }
  return "accepted";
}

/// n, which the compiler cannot know: it warns of buffers that it sees overlap.
inline std::size_t at_run_time(std::size_t n) {
  const volatile std::size_t hidden = n;
  return hidden;
}

/// What an argument error starts with on this rank.
template <class T>
std::string refused(std::string_view function, T& comm, const std::string& why) {
  return "invalid_argument: hvd: " + std::string(function) + " on rank " + std::to_string(comm.rank()) + " of " +
         std::to_string(comm.size()) + ": " + why;
}
template <class T>
std::string refused(operation what, T& comm, const std::string& why) {
  return refused(name(what), comm, why);
}

/// The vector (rank + 1) * {1, 2, 3, ...}.
template <class E = float>
std::vector<E> ramp(int rank, std::size_t count) {
  std::vector<E> v(count);
  for (std::size_t i = 0; i != count; ++i) v[i] = static_cast<E>(rank + 1) * static_cast<E>(i + 1);
  return v;
}
/// Its sum over `ranks` ranks.
template <class E = float>
std::vector<E> ramp_sum(int ranks, std::size_t count) {
  std::vector<E> v = ramp<E>(0, count);
  for (E& e : v) e *= static_cast<E>(ranks * (ranks + 1) / 2);
  return v;
}
/// The ramps of all ranks, one after the other.
template <class E = float>
std::vector<E> ramps(int ranks, std::size_t each) {
  std::vector<E> all;
  for (int q = 0; q != ranks; ++q) {
    for (const E e : ramp<E>(q, each)) all.push_back(e);
  }
  return all;
}

}  // namespace hvd::test
