// tests/transport/on_mpi.hpp: how tests run on groups of the ranks that mpiexec has started.
//
// Every rank runs every test case; a group of n is the first n ranks. Tests expect four.
#pragma once

#include <hvd/transport/mpi.hpp>

#include <support/require.hpp>
#include <transport/launchers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <string>

namespace hvd::test {

/// All ranks of the program. Its deadline outlasts any test case in which some of them take no part.
inline MpiTransport& world() {
  static MpiTransport all(MPI_COMM_WORLD, {.timeout = std::chrono::minutes(10)});
  return all;
}

/// Says what went wrong here and ends the program on all ranks: the others may be waiting for this one inside MPI.
[[noreturn]] inline void end_all(const std::string& why) {
  const auto* const test = doctest::getContextOptions()->currentTest;
  std::fprintf(stderr, "rank %d: %s: %s\n", world().rank(), test != nullptr ? test->m_name : "(outside a test case)",
               why.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::terminate();
}

/// f(communicator) on the first `size` ranks; the others wait till it has ended.
template <class F>
void on_first(int size, const F& f) {
  MpiTransport& all = world();
  require(size <= all.size(), "started with too few ranks; run with mpiexec -n 4");
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, all.rank() < size ? 0 : 1, all.rank(), &part);
  if (all.rank() < size) {
    try {
      f(part);
    } catch (const std::exception& e) {
      end_all(e.what());
    }
  }
  MPI_Comm_free(&part);
  all.barrier();
}

/// Words of all ranks of a host.
class common_words {
 public:
  common_words(MPI_Comm comm, int n) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    void* mine = nullptr;
    MPI_Win_allocate_shared(rank == 0 ? static_cast<MPI_Aint>(n) * 8 : 0, 8, MPI_INFO_NULL, comm, &mine, &window_);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &bytes, &unit, &words_);
    if (rank == 0) std::fill_n(words_, n, std::uint64_t{0});
    MPI_Barrier(comm);
  }
  common_words(const common_words&) = delete;
  common_words& operator=(const common_words&) = delete;
  ~common_words() { MPI_Win_free(&window_); }
  std::atomic_ref<std::uint64_t> operator[](int i) const { return std::atomic_ref(words_[i]); }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::uint64_t* words_ = nullptr;
};

/// The launcher of the conformance tests. `most` lowered sends everything through the pieces that very long counts
/// need.
template <std::size_t Most>
struct on_mpi_by {
  using transport = MpiTransport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  template <class F>
  static void run(int size, const F& f, const sharing_options& opts = long_deadline()) {
    on_first(size, [&](MPI_Comm part) {
      MpiTransport comm(part, {.timeout = opts.failure.timeout, .most = Most});
      f(comm);
    });
  }
};
using on_mpi = on_mpi_by<INT_MAX>;

}  // namespace hvd::test
