// Counts beyond 2^31. Buffers are as long as that, but most of their pages are the same few.
#include <hvd/hvd.hpp>

#include <support/require.hpp>
#include <support/skip.hpp>
#include <support/verifiable.hpp>
#include <transport/launchers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

using namespace hvd::test;

namespace {

inline constexpr std::size_t count = (std::size_t{1} << 31) + 12345;
inline constexpr std::size_t edge = std::size_t{1} << 16;    // what starts and ends a buffer is its own memory
inline constexpr std::size_t period = std::size_t{1} << 21;  // all between is mapped again and again

/// `n` bytes of which element i, away from both ends, is the same memory as element i + period.
class periodic_buffer {
 public:
  explicit periodic_buffer(std::size_t n) : size_(n), mapped_((n + 4095) / 4096 * 4096) {
    file_ = ::memfd_create("periodic", MFD_CLOEXEC);
    require(file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(period)) == 0, "cannot make an anonymous file");
    void* const p =
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(p != MAP_FAILED, "cannot reserve addresses");
    data_ = static_cast<std::int8_t*>(p);
    for (std::size_t at = edge; at < tail();) {
      const std::size_t in_file = at % period;
      const std::size_t bytes = std::min(period - in_file, tail() - at);
      void* const piece =
          ::mmap(data_ + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(in_file));
      require(piece != MAP_FAILED, "cannot map the same pages again");
      at += bytes;
    }
  }
  periodic_buffer(const periodic_buffer&) = delete;
  periodic_buffer& operator=(const periodic_buffer&) = delete;
  ~periodic_buffer() {
    ::munmap(data_, mapped_);
    ::close(file_);
  }

  [[nodiscard]] std::span<std::int8_t> all() const { return {data_, size_}; }
  /// f(i) for every element that has memory of its own: both ends, and one period.
  template <class F>
  void for_each(const F& f) const {
    for (std::size_t i = 0; i != edge + period; ++i) f(i);
    for (std::size_t i = tail(); i != size_; ++i) f(i);
  }

 private:
  /// Where the end with its own memory starts: 2^31 lies in it.
  [[nodiscard]] std::size_t tail() const { return (size_ - edge) / 4096 * 4096; }

  std::size_t size_;
  std::size_t mapped_;
  int file_;
  std::int8_t* data_;
};

/// What rank r has at i; the same at i + period, away from the ends.
std::int8_t value(std::size_t i, int rank) {
  const bool own = i < edge || i >= count - 2 * edge;
  return static_cast<std::int8_t>(draw(own ? i : i % period + period, rank) % 251);
}
void expect(std::int8_t got, std::int8_t want, std::size_t i, const char* what) {
  require(got == want, [&] {
    return std::string(what) + ": element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
           std::to_string(want);
  });
}

template <class C>
void check_allreduce(C& comm) {
  const periodic_buffer data(count);
  data.for_each([&](std::size_t i) { data.all()[i] = value(i, comm.rank()); });
  // Where an element is reduced a thousand times over, only an idempotent operation has a known result.
  hvd::allreduce(comm, data.all(), hvd::max);
  data.for_each([&](std::size_t i) {
    expect(data.all()[i], std::max(value(i, 0), value(i, 1)), i, "allreduce of more than 2^31 elements");
  });
}
template <class C>
void check_broadcast(C& comm) {
  const periodic_buffer data(count);
  if (comm.rank() == 1) data.for_each([&](std::size_t i) { data.all()[i] = value(i, 1); });
  hvd::broadcast(comm, data.all(), 1);
  data.for_each([&](std::size_t i) { expect(data.all()[i], value(i, 1), i, "broadcast of more than 2^31 elements"); });
}
template <class C>
void check_message(C& comm) {
  const periodic_buffer data(count);
  if (comm.rank() == 0) {
    data.for_each([&](std::size_t i) { data.all()[i] = value(i, 0); });
    hvd::send(comm, data.all(), 1);
  } else {
    hvd::recv(comm, data.all(), 0);
    data.for_each([&](std::size_t i) { expect(data.all()[i], value(i, 0), i, "a message of more than 2^31 bytes"); });
  }
}
/// The second block starts beyond 2^31.
template <class C>
void check_allgather(C& comm) {
  const std::size_t counts[] = {count, 1000};
  const periodic_buffer out(count + 1000);
  const auto own = comm.rank() == 0 ? out.all().first(count) : out.all().last(1000);
  if (comm.rank() == 0) {
    for (std::size_t i = 0; i != edge; ++i) own[i] = value(i, 0);
  } else {
    for (std::size_t i = 0; i != 1000; ++i) own[i] = value(i, 1);
  }
  hvd::allgather_v(comm, own, out.all(), counts);
  for (std::size_t i = 0; i != edge; ++i) expect(out.all()[i], value(i, 0), i, "the first block of an allgather");
  for (std::size_t i = 0; i != 1000; ++i) {
    expect(out.all()[count + i], value(i, 1), count + i, "the block of an allgather that starts beyond 2^31");
  }
}

/// Inputs of alloc_shared memory: pages that are never written cost nothing, and are zero.
template <class C>
void check_mapped(C& comm) {
  auto in = comm.template alloc_shared<std::int8_t>(count);
  const auto given = [&](std::size_t i, int rank) {
    return i < edge || i >= count - edge / 2 ? value(i, rank) : std::int8_t{0};
  };
  const auto at_ends = [&](const auto& f) {
    for (std::size_t i = 0; i != edge; ++i) f(i);
    for (std::size_t i = count - edge / 2; i != count; ++i) f(i);
  };
  at_ends([&](std::size_t i) { in[i] = given(i, comm.rank()); });
  {
    const periodic_buffer out(count);
    hvd::broadcast(comm, in, out.all(), 0);
    at_ends([&](std::size_t i) { expect(out.all()[i], given(i, 0), i, "broadcast of alloc_shared memory"); });
  }
  // The first block ends beyond 2^31, where the second starts.
  const std::size_t counts[] = {count - 1000, 1000};
  const periodic_buffer out(counts[comm.rank()] + 4 * edge);
  hvd::reduce_scatter_v(comm, in, out.all().first(counts[comm.rank()]), counts, hvd::max);
  for (std::size_t i = comm.rank() == 0 ? 0 : count - 1000; i != (comm.rank() == 0 ? edge : count); ++i) {
    const std::size_t at = comm.rank() == 0 ? i : i - (count - 1000);
    expect(out.all()[at], std::max(given(i, 0), given(i, 1)), i, "reduce_scatter of alloc_shared memory");
  }
}

}  // namespace

TEST_CASE("more than 2^31 elements through staging memory") {
  on_processes::run(2, [](auto& comm) {
    check_allreduce(comm);
    check_broadcast(comm);
    check_allgather(comm);
  });
}
TEST_CASE("a message of more than 2^31 bytes") {
  on_processes::run(2, [](auto& comm) { check_message(comm); });
}
TEST_CASE("more than 2^31 elements of alloc_shared memory") {
  // Threads: processes reserve such memory, and this would be 4 GiB.
  try {
    hvd::thread_run(
        2, [](hvd::ThreadTransport& comm) { check_mapped(comm); }, long_deadline());
  } catch (const hvd::error& e) {
    if (e.kind() != hvd::error_kind::no_memory) throw;
    skip(e.what());
  }
}
