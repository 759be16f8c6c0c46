// tests/transport/launchers.hpp: how the conformance tests start the ranks of each transport.
#pragma once

#include <hvd/launch.hpp>
#include <hvd/transport/self.hpp>

#include <support/sanitizers.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <initializer_list>
#include <new>

#include <sys/mman.h>

namespace hvd::test {

/// A deadline that only a hang reaches: also with eight ranks on two busy CPUs, under a sanitizer.
inline sharing_options long_deadline() {
  sharing_options opts;
  opts.failure.timeout = std::chrono::seconds(30);
  opts.failure.check = false;
  return opts;
}

struct on_self {
  using transport = SelfTransport;
  static constexpr std::initializer_list<int> sizes = {1};
  template <class F>
  static void run(int /*size*/, const F& f, const sharing_options& /*opts*/ = {}) {
    SelfTransport t;
    CHECK_NOTHROW(f(t));
  }
};
struct on_threads {
  using transport = ThreadTransport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  template <class F>
  static void run(int size, const F& f, const sharing_options& opts = long_deadline()) {
    CHECK_NOTHROW(thread_run(size, f, opts));
  }
};
struct on_processes {
  using transport = ShmTransport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  /// What a rank has to say is on standard error.
  template <class F>
  static void run(int size, const F& f, const sharing_options& opts = long_deadline()) {
    CHECK(fork_run(size, f, opts) == 0);
  }
};

/// Numbers that ranks leave for the test case that started them, be they threads or processes.
class left_behind {
 public:
  explicit left_behind(std::size_t n) : n_(n) {
    void* const p =
        ::mmap(nullptr, n * sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    values_ = static_cast<std::uint64_t*>(p);
  }
  left_behind(const left_behind&) = delete;
  left_behind& operator=(const left_behind&) = delete;
  ~left_behind() { ::munmap(values_, n_ * sizeof(std::uint64_t)); }
  std::uint64_t& operator[](std::size_t i) const { return values_[i]; }

 private:
  std::size_t n_;
  std::uint64_t* values_;
};

}  // namespace hvd::test
