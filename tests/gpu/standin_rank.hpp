// tests/gpu/standin_rank.hpp: child processes that use the stand-ins directly, as hvd's own code does.
//
// The parent never calls cuInit: each case, and each rank, is a process with its own environment.
#pragma once

#include <hvd/cuda/driver.hpp>
#include <hvd/transport/nccl/library.hpp>

#include "gpu/standin.hpp"
#include "support/processes.hpp"
#include "support/require.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <source_location>
#include <string>
#include <vector>

namespace hvd::test {

using environment = std::map<std::string, std::string>;
inline void set_environment(const environment& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}
/// NCCL whose calls are in progress for a while, and one with the functions of NCCL 2.18.
/// Calls that do not block, as hvd makes them before NCCL 2.28.7.
inline const environment in_progress{{"HVD_STANDIN_NCCL_IN_PROGRESS", "1"}, {"HVD_STANDIN_NCCL_VERSION", "22805"}};
inline environment old_library() { return {{"HVD_NCCL_LIBRARY", std::getenv("HVD_STANDIN_NCCL_OLD_LIBRARY")}}; }

/// Runs f(rank) in `count` processes, and reports what they threw. With `fails` they must end otherwise.
template <class F>
void in_processes(int count, const environment& variables, F f, bool fails = false) {
  children all(count);
  all.start_all([&](int rank, report&) {
    set_environment(variables);
    f(rank);
  });
  CHECK(all.wait(60.0));
  for (int i = 0; i != count; ++i) {
    CAPTURE(i);
    CAPTURE(all[i].text());
    CHECK((all.status(i) != 0) == fails);
  }
}
template <class F>
void in_process(const environment& variables, F f, bool fails = false) {
  in_processes(
      1, variables, [&](int) { f(); }, fails);
}

inline void must(int code, int expected = 0, std::source_location where = std::source_location::current()) {
  require(
      code == expected, [&] { return "code " + std::to_string(code) + ", not " + std::to_string(expected); }, where);
}

/// A device that is current, and streams on it.
struct on_device {
  const detail::cuda_driver& cu = detail::get_cuda();
  const standin_gpu& gpu = standin_gpu::get();
  detail::cu_context context = nullptr;
  detail::cu_stream a = nullptr, b = nullptr;

  explicit on_device(int device = 0) {
    must(cu.primary_retain(&context, device));
    must(cu.context_set(context));
    must(cu.stream_create(&a, detail::cu_stream_non_blocking, 0));
    must(cu.stream_create(&b, detail::cu_stream_non_blocking, 0));
  }
  [[nodiscard]] detail::cu_pointer alloc(std::size_t bytes) const {
    detail::cu_pointer address = 0;
    must(cu.alloc(&address, bytes));
    return address;
  }
  [[nodiscard]] detail::cu_event event(unsigned flags = detail::cu_event_disable_timing) const {
    detail::cu_event e = nullptr;
    must(cu.event_create(&e, flags));
    return e;
  }
  /// What is queued on `to` from now on runs after what is on `from`.
  void order(detail::cu_stream from, detail::cu_stream to) const {
    detail::cu_event e = event();
    must(cu.event_record(e, from));
    must(cu.stream_wait(to, e, 0));
    must(cu.event_destroy(e));
  }
  template <class T>
  [[nodiscard]] detail::cu_pointer put(const std::vector<T>& values, detail::cu_stream stream) const {
    const detail::cu_pointer address = alloc(values.size() * sizeof(T));
    must(cu.copy_to_device(address, values.data(), values.size() * sizeof(T), stream));
    return address;
  }
  template <class T>
  [[nodiscard]] std::vector<T> get(detail::cu_pointer address, std::size_t count, detail::cu_stream stream) const {
    std::vector<T> values(count);
    must(cu.copy_to_host(values.data(), address, count * sizeof(T), stream));
    return values;
  }
  [[nodiscard]] std::uint64_t violations() const { return gpu.violations(nullptr, 0); }
  /// There was one more, whose sentence has this text.
  void one_violation(const std::string& text, std::source_location where = std::source_location::current()) const {
    require(
        violations() == 1, [&] { return std::to_string(violations()) + " violations"; }, where);
    require(gpu.last_violation().find(text) != std::string::npos, gpu.last_violation(), where);
    gpu.clear_violations();
  }
  void no_violation(std::source_location where = std::source_location::current()) const {
    require(violations() == 0, gpu.last_violation(), where);
  }
};

}  // namespace hvd::test
