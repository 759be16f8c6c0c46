// Every element type with every operation, for each protocol of shared memory and each transport.
//
// Types are erased first, as the library does it, and one program serves all transports: the kernels are the
// same, and they take longest to compile.
#include "conformance.hpp"

#include <hvd/hvd.hpp>

#include <complex>
#include <optional>
#include <string>

using namespace hvd::test;

namespace {

/// One operation on one type, and what is known about it.
struct typed_op {
  std::string name;
  hvd::reduction (*make)(int size);
  std::size_t bytes;
  void (*input)(std::byte* to, std::size_t count, int rank, int size);
  /// The first element that is not what it should be.
  std::optional<std::size_t> (*wrong)(const std::byte* got, std::size_t count, int size);
};

// Named objects, because the functions above can capture nothing.
inline constexpr auto twice_and_half = hvd::scaled(hvd::sum, 2.0, 0.5);
inline constexpr auto twice_and_three = hvd::scaled(hvd::average, 2.0, 3.0);
inline constexpr auto leftmost = hvd::non_commutative(first_of{});
inline constexpr exclusive_or bitwise_difference{};
inline constexpr compose composition{};
inline constexpr combine_blocks blockwise{};

template <class T, const auto& op>
typed_op with(const char* what) {
  return {
      std::string(what) + " of " + std::string(name(hvd::dtype_of<T>)),
      [](int size) { return hvd::make_reduction<T>(op, size); },
      sizeof(T),
      [](std::byte* to, std::size_t count, int rank, int size) {
        for (std::size_t i = 0; i != count; ++i) {
          const T value = input<T>(op, i, rank, size);
          std::memcpy(to + i * sizeof(T), &value, sizeof(T));
        }
      },
      [](const std::byte* got, std::size_t count, int size) -> std::optional<std::size_t> {
        for (std::size_t i = 0; i != count; ++i) {
          T value;
          std::memcpy(static_cast<void*>(&value), got + i * sizeof(T), sizeof(T));
          if (!(value == expected<T>(op, i, size))) return i;  // by value: zeros are equal
        }
        return std::nullopt;
      },
  };
}

template <class T>
std::vector<typed_op> numbers() {
  return {with<T, hvd::sum>("sum"), with<T, hvd::average>("average"), with<T, hvd::product>("product"),
          with<T, twice_and_half>("scaled sum"), with<T, twice_and_three>("scaled average")};
}
template <class T>
std::vector<typed_op> order() {
  return {with<T, hvd::min>("min"), with<T, hvd::max>("max")};
}
template <class... T>
std::vector<typed_op> ordered_numbers() {
  std::vector<typed_op> all;
  const auto add = [&](const std::vector<typed_op>& more) { all.insert(all.end(), more.begin(), more.end()); };
  ((add(numbers<T>()), add(order<T>())), ...);
  return all;
}

/// Allreduce, in place and out of place, and reduce to the last rank.
template <class C, class How>
void check(C& comm, const typed_op& op, std::size_t n, bool shared, const How& how) {
  const std::size_t bytes = n * op.bytes;
  const int root = comm.size() - 1;
  auto memory = comm.template alloc_shared<std::byte>(shared ? 2 * bytes : 1);
  std::vector<std::byte> own(shared ? 0 : 2 * bytes);
  std::byte* const in = shared ? memory.data() : own.data();
  std::byte* const out = in + bytes;
  const hvd::reduction r = op.make(comm.size());
  const auto right = [&](const std::byte* got, const char* what) {
    const auto at = op.wrong(got, n, comm.size());
    require(!at, [&] {
      return op.name + ", " + what + " on rank " + std::to_string(comm.rank()) + " of " + std::to_string(comm.size()) +
             (shared ? ", shared memory" : "") + ": element " + std::to_string(*at) + " of " + std::to_string(n) +
             " is wrong";
    });
  };
  op.input(in, n, comm.rank(), comm.size());
  hvd::detail::run(comm, hvd::reduce_call{in, out, n, r, root}, how);
  if (comm.rank() == root) right(out, "reduce");
  hvd::detail::run(comm, hvd::allreduce_call{in, out, n, r}, how);
  right(out, "allreduce");
  hvd::detail::run(comm, hvd::allreduce_call{in, in, n, r}, how);
  right(in, "allreduce in place");
}

template <class Run>
void each_protocol(const std::vector<typed_op>& ops) {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      for (const typed_op& op : ops) {
        for (const std::size_t n : {1, 3, 8, 29, 61, 333}) {
          if constexpr (hvd::PeerMemory<std::remove_reference_t<decltype(comm)>>) {
            check(comm, op, n, false, hvd::direct{.one_shot_bytes = 1 << 30});
            check(comm, op, n, false, hvd::direct{.one_shot_bytes = 1, .chunk_bytes = 1024});
            if (n % 3 == 0) check(comm, op, n, true, hvd::direct{.one_shot_bytes = 1, .mapped_bytes = 1});
            if (n == 61) check(comm, op, n, false, hvd::tree{});  // prepares, combines and finishes in steps
          } else {
            check(comm, op, n, n % 2 == 0, hvd::automatic<>{});
          }
        }
      }
    });
  }
}
void everywhere(const std::vector<typed_op>& ops) {
  SUBCASE("alone") { each_protocol<on_self>(ops); }
  SUBCASE("threads") { each_protocol<on_threads>(ops); }
  SUBCASE("processes") { each_protocol<on_processes>(ops); }
}

}  // namespace

TEST_CASE("integers") {
  everywhere(ordered_numbers<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                             std::int64_t, std::uint64_t>());
}
TEST_CASE("floating-point numbers") { everywhere(ordered_numbers<hvd::half, hvd::bfloat16, float, double>()); }
TEST_CASE("complex numbers") {
  std::vector<typed_op> all = numbers<std::complex<float>>();
  for (const typed_op& op : numbers<std::complex<double>>()) all.push_back(op);
  everywhere(all);
}
TEST_CASE("bool") { everywhere(order<bool>()); }
TEST_CASE("types and operations of a user") {
  everywhere({with<std::uint32_t, bitwise_difference>("exclusive or"), with<std::int16_t, leftmost>("first"),
              with<affine, composition>("composition"), with<block, blockwise>("mixed")});
}
