// tests/gpu/nccl_types.cpp: the reductions of NcclTransport, of every type, scaled and averaged.
#include <hvd/hvd.hpp>

#include <gpu/through_device.hpp>
#include <support/verifiable.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace gpu_nccl_types_tests {

using namespace hvd::test;

namespace {

/// Every reducing collective of one type and operation.
template <class T, class Op>
void check(through_device& comm, const Op& op) {
  const int p = comm.size(), rank = comm.rank();
  const auto ranks = static_cast<std::size_t>(p), me = static_cast<std::size_t>(rank);
  for (const std::size_t n : {0U, 1U, 77U}) {
    auto in = comm.alloc_shared<T>(n * ranks), out = comm.alloc_shared<T>(n * ranks);
    for (std::size_t i = 0; i != n * ranks; ++i) in[i] = input<T>(op, i, rank, p);
    const auto right = [&, name = __PRETTY_FUNCTION__](const T* got, std::size_t from, std::size_t count,
                                                       const char* what) {
      for (std::size_t i = 0; i != count; ++i) {
        require(got[i] == expected<T>(op, from + i, p), [&] { return std::string(what) + ": wrong, " + name; });
      }
    };
    hvd::allreduce(comm, in, out, op, hvd::native{});
    right(out.data(), 0, n * ranks, "allreduce");
    const int root = p - 1;
    auto at_root = comm.alloc_shared<T>(n * ranks);
    hvd::reduce(comm, in, at_root, op, root, hvd::native{});
    if (rank == root) right(at_root.data(), 0, n * ranks, "reduce");
    auto mine = comm.alloc_shared<T>(n);
    hvd::reduce_scatter(comm, in, mine, op, hvd::native{});
    right(mine.data(), n * me, n, "reduce_scatter");
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r != ranks; ++r) counts.push_back(n / (r + 1));
    std::size_t whole = 0, before = 0;
    for (std::size_t r = 0; r != ranks; ++r) {
      if (r == me) before = whole;
      whole += counts[r];
    }
    const std::span<const T> given(in.data(), whole);
    auto part = comm.alloc_shared<T>(counts[me]);
    hvd::reduce_scatter_v(comm, given, part, counts, op, hvd::native{});
    right(part.data(), before, counts[me], "reduce_scatter_v");
    hvd::allreduce(comm, in, op, hvd::native{});
    right(in.data(), 0, n * ranks, "allreduce in place");
  }
}
template <class T>
void check_sums(through_device& comm) {
  check<T>(comm, hvd::sum);
  check<T>(comm, hvd::average);
  check<T>(comm, hvd::scaled(hvd::sum, 2.0));
  check<T>(comm, hvd::scaled(hvd::sum, 2.0, 0.5));
  check<T>(comm, hvd::scaled(hvd::average, 2.0, 3.0));
}
template <class T>
void check_number(through_device& comm) {
  check_sums<T>(comm);
  check<T>(comm, hvd::product);
  check<T>(comm, hvd::min);
  check<T>(comm, hvd::max);
}
void check_types(through_device& comm) {
  check_number<std::int8_t>(comm);
  check_number<std::uint8_t>(comm);
  check_number<std::int32_t>(comm);
  check_number<std::uint32_t>(comm);
  check_number<std::int64_t>(comm);
  check_number<std::uint64_t>(comm);
  check_number<hvd::half>(comm);
  check_number<hvd::bfloat16>(comm);
  check_number<float>(comm);
  check_number<double>(comm);
  check_sums<std::complex<float>>(comm);
  check_sums<std::complex<double>>(comm);
  check<bool>(comm, hvd::min);
  check<bool>(comm, hvd::max);
}

/// What an average of three ranks is, bit for bit, with the factor of the element's type.
template <class T>
void check_thirds(through_device& comm, hvd::nccl_average how) {
  const std::size_t n = 100;
  std::vector<T> mine(n), want(n);
  const auto value = [](std::size_t i, int rank) { return order_sensitive<T>(i, rank); };
  using C = std::conditional_t<sizeof(T) == 2, float, T>;
  const bool before = how == hvd::nccl_average::pre_mul || how == hvd::nccl_average::nccl_avg;
  const T third = static_cast<T>(C{1} / C{3});
  for (std::size_t i = 0; i != n; ++i) {
    mine[i] = value(i, comm.rank());
    T sum{};
    for (int r = 0; r != 3; ++r) {
      const T x = before ? T(static_cast<C>(value(i, r)) * static_cast<C>(third)) : value(i, r);
      sum = r == 0 ? x : T(static_cast<C>(sum) + static_cast<C>(x));
    }
    want[i] = before ? sum : T(static_cast<C>(sum) / C{3});
  }
  hvd::allreduce(comm, mine, hvd::average, hvd::native{});
  same(mine, want);
}

}  // namespace

TEST_CASE("NCCL: every type and operation, scaled and not") {
  for (const int size : {1, 2, 3}) on_nccl::run(size, check_types);
}
TEST_CASE("NCCL: every way to average") {
  using enum hvd::nccl_average;
  for (const hvd::nccl_average how : {automatic, post_scale, pre_mul, nccl_avg}) {
    hvd::nccl_options options;
    options.average = how;
    for (const int size : {2, 4}) {
      // Halves and quarters are exact in every type.
      on_nccl::run_with(size, {}, options, [](through_device& comm) {
        check_sums<std::int8_t>(comm);
        check_sums<std::int32_t>(comm);
        check_sums<std::uint64_t>(comm);
        check_sums<float>(comm);
        check_sums<double>(comm);
        check_sums<std::complex<float>>(comm);
        check_sums<std::complex<double>>(comm);
        check<hvd::half>(comm, hvd::average);
        check<hvd::bfloat16>(comm, hvd::average);
      });
    }
    on_nccl::run_with(3, {}, options, [how](through_device& comm) {
      check_thirds<float>(comm, how);
      check_thirds<double>(comm, how);
      check_thirds<hvd::half>(comm, how);
      check_thirds<hvd::bfloat16>(comm, how);
      check<std::int32_t>(comm, hvd::average);
    });
  }
}

}  // namespace gpu_nccl_types_tests
