// tests/engine/operations.hpp: operations of the engine at random, and the results that they must have, bit for bit.
#pragma once

#include <hvd/engine.hpp>

#include <support/require.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace hvd::test {

/// A number that looks random, from numbers (splitmix64, step by step).
constexpr std::uint64_t mix(std::initializer_list<std::uint64_t> from) noexcept {
  std::uint64_t x = 0;
  for (const std::uint64_t n : from) {
    x += n + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

/// Only a hang lasts longer.
inline constexpr std::chrono::seconds long_enough{60};

using setter = void (*)(std::byte* at, int value);
template <class T>
void set_element(std::byte* at, int value) {
  T element{};
  if constexpr (detail::is_complex<T>) {
    element = T(static_cast<typename T::value_type>(value), static_cast<typename T::value_type>(value / 2));
  } else if constexpr (detail::is_half<T>) {
    element = T(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    element = value % 2 != 0;
  } else {
    element = static_cast<T>(value);
  }
  std::memcpy(at, &element, sizeof element);
}
template <std::size_t... I>
constexpr auto setters_of(std::index_sequence<I...>) {
  return std::array<setter, sizeof...(I)>{set_element<std::tuple_element_t<I, detail::dtypes>>...};
}
inline constexpr auto setters = setters_of(std::make_index_sequence<std::tuple_size_v<detail::dtypes>>());
inline constexpr int dtype_count = static_cast<int>(std::tuple_size_v<detail::dtypes>);

inline bool defined(reduce_op op, dtype type) {
  if (op != reduce_op::adasum) return detail::find_maker(type, op) != nullptr;
  return type == dtype::float16 || type == dtype::bfloat16 || type == dtype::float32 || type == dtype::float64;
}

/// One operation as all ranks know it. Inputs are small whole numbers, so that every order of additions gives the same.
struct task {
  operation kind = operation::allreduce;
  std::string name{};
  std::vector<dtype> types{dtype::float32};
  std::size_t rows = 1, width = 1;  ///< of each tensor; at most those of most allgathers and of alltoall
  reduce_op op = reduce_op::sum;
  double prescale = 1.0, postscale = 1.0;
  dtype wire = dtype::user;
  int root = 0, priority = 0;
  bool even = true;        ///< alltoall: without splits
  std::uint64_t seed = 0;  ///< of the values

  [[nodiscard]] std::size_t splits(int from, int to, std::size_t t) const {
    return even ? rows : mix({seed, 11, word(from), word(to), t}) % (rows + 1);
  }
  /// Of an allgather: all ranks have `rows` rows, and pass memory for the result.
  [[nodiscard]] bool into_memory() const { return kind == operation::allgather && seed % 3 == 0; }
  /// Rows of tensor t on a rank.
  [[nodiscard]] std::size_t rows_of(int rank, int p, std::size_t t) const {
    if (kind == operation::allgather && !into_memory()) return mix({seed, 12, word(rank), t}) % (rows + 1);
    if (kind != operation::alltoall) return rows;
    std::size_t all = even ? 0 : seed % 2;  // what no rank gets
    for (int to = 0; to != p; ++to) all += splits(rank, to, t);
    return all;
  }
  [[nodiscard]] std::vector<std::byte> input(int rank, int p, std::size_t t) const {
    const std::size_t each = size_of(types[t]), n = rows_of(rank, p, t) * width;
    std::vector<std::byte> bytes(n * each);
    const setter set = setters[static_cast<std::size_t>(types[t])];
    // Adasum keeps what is the same on all ranks; other results are sums of a few quarters.
    const std::uint64_t who = op == reduce_op::adasum ? 0 : word(rank);
    for (std::size_t i = 0; i != n; ++i) {
      const auto v = static_cast<int>(mix({seed, who, t, i}) % 4);
      set(bytes.data() + i * each, op == reduce_op::product ? 1 + v % 2 : v);
    }
    return bytes;
  }

  struct expected {
    std::vector<std::byte> bytes{};
    std::vector<std::size_t> shape{}, received{};
  };
  /// What tensor t gives on a rank; `absent` ranks have joined.
  [[nodiscard]] expected result(int rank, int p, std::size_t t, const std::vector<int>& absent = {}) const {
    expected e;
    const std::size_t row = width * size_of(types[t]);
    const auto append = [&](const std::vector<std::byte>& from, std::size_t first, std::size_t count) {
      const auto at = from.begin() + static_cast<std::ptrdiff_t>(first * row);
      e.bytes.insert(e.bytes.end(), at, at + static_cast<std::ptrdiff_t>(count * row));
    };
    std::size_t count = rows;
    if (kind == operation::broadcast) {
      append(input(root, p, t), 0, rows);
    } else if (kind == operation::allgather) {
      count = 0;
      for (int r = 0; r != p; ++r) {
        append(input(r, p, t), 0, rows_of(r, p, t));
        count += rows_of(r, p, t);
      }
    } else if (kind == operation::alltoall) {
      count = 0;
      for (int from = 0; from != p; ++from) {
        std::size_t before = 0;
        for (int to = 0; to != rank; ++to) before += splits(from, to, t);
        e.received.push_back(splits(from, rank, t));
        append(input(from, p, t), before, e.received.back());
        count += e.received.back();
      }
    } else {
      const std::vector<std::byte> all = reduced(p, t, absent);
      if (kind == operation::allreduce) {
        e.bytes = all;
      } else {
        const auto q = static_cast<std::size_t>(p), r = static_cast<std::size_t>(rank);
        count = rows / q + (r < rows % q ? 1 : 0);
        append(all, r * (rows / q) + std::min(r, rows % q), count);
      }
    }
    e.shape = {count, width};
    return e;
  }

 private:
  static std::uint64_t word(int rank) noexcept { return static_cast<std::uint64_t>(rank); }
  [[nodiscard]] std::vector<std::byte> reduced(int p, std::size_t t, const std::vector<int>& absent) const {
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r != p; ++r) {
      inputs.push_back(input(r, p, t));
      if (std::find(absent.begin(), absent.end(), r) != absent.end())
        std::fill_n(inputs.back().data(), inputs.back().size(), std::byte{});
    }
    if (op == reduce_op::adasum) std::swap(inputs[0], *std::max_element(inputs.begin(), inputs.end()));
    const bool adaptive = op == reduce_op::adasum;
    const reduction r = make_reduction(types[t], adaptive ? reduce_op::sum : op, adaptive ? 1 : p, prescale, postscale);
    std::vector<const std::byte*> ins;
    for (const auto& i : inputs) ins.push_back(i.data());
    std::vector<std::byte> out(inputs[0].size());
    std::byte* const to = out.data();
    r.complete(&to, 1, ins.data(), adaptive ? 1 : p, rows * width);
    return out;
  }
};

/// A task at random; `big` is about how many elements a tensor has at most.
inline task random_task(std::uint64_t seed, int p, const std::string& name, std::size_t big) {
  std::uint64_t draws = 100;
  const auto below = [&](std::uint64_t limit) { return mix({seed, ++draws}) % limit; };
  task t;
  t.seed = seed;
  t.name = name;
  constexpr operation kinds[] = {operation::allreduce, operation::allreduce, operation::allreduce,
                                 operation::allgather, operation::broadcast, operation::reduce_scatter,
                                 operation::alltoall,  operation::barrier};
  t.kind = kinds[below(std::size(kinds))];
  t.types.clear();
  if (t.kind == operation::barrier) return t;
  t.width = 1 + below(3);
  t.rows = below(5) == 0 ? below(3) : below(1 + big / t.width / 2);
  t.root = static_cast<int>(below(static_cast<std::uint64_t>(p)));
  t.even = below(2) == 0;
  t.priority = static_cast<int>(below(3));
  if (detail::has_op(t.kind)) {
    t.op = static_cast<reduce_op>(below(6));
    if (t.kind == operation::reduce_scatter && t.op == reduce_op::adasum) t.op = reduce_op::sum;
  }
  const std::size_t tensors = below(4) == 0 ? 1 + below(4) : 1;
  while (t.types.size() != tensors) {
    const auto type = static_cast<dtype>(below(static_cast<std::uint64_t>(dtype_count)));
    if (!detail::has_op(t.kind) || defined(t.op, type)) t.types.push_back(type);
  }
  const bool scalable = std::find(t.types.begin(), t.types.end(), dtype::boolean) == t.types.end();
  if (detail::has_op(t.kind) && scalable && below(3) == 0) {
    t.prescale = 0.5;
    t.postscale = 2.0;
  }
  return t;
}

/// A task on one rank, from its inputs to the comparison of its results.
class attempt {
 public:
  attempt(task what, int rank, int p) : what_(std::move(what)), rank_(rank), p_(p) {}
  attempt(attempt&&) = default;
  attempt& operator=(attempt&&) = default;

  [[nodiscard]] const task& what() const noexcept { return what_; }
  [[nodiscard]] const handle& end() const noexcept { return end_; }

  /// The request; where its result goes is each rank's own choice.
  [[nodiscard]] request ask() {
    request r;
    r.kind = what_.kind;
    r.name = what_.name;
    r.op = what_.op;
    r.prescale = what_.prescale;
    r.postscale = what_.postscale;
    r.wire = what_.wire;
    r.root = what_.root;
    r.even = what_.kind == operation::alltoall && what_.even && what_.seed % 4 < 2;
    r.priority = what_.priority;
    for (std::size_t t = 0; t != what_.types.size(); ++t) {
      in_.push_back(what_.input(rank_, p_, t));
      in_.back().reserve(1);
      auto& out = out_.emplace_back();
      tensor x;
      x.type = what_.types[t];
      x.shape = {what_.rows_of(rank_, p_, t), what_.width};
      x.in = in_.back().data();
      if (what_.kind == operation::alltoall && !what_.even) {
        for (int to = 0; to != p_; ++to) x.splits.push_back(what_.splits(rank_, to, t));
      }
      const auto where = mix({what_.seed, 13, static_cast<std::uint64_t>(rank_), t}) % 3;
      if (where == 1 && (what_.kind == operation::allreduce || what_.kind == operation::broadcast)) {
        x.out = in_.back().data();
      } else if (what_.kind == operation::allgather ? what_.into_memory() : where != 0) {
        const task::expected e = what_.result(rank_, p_, t);
        out.resize(e.bytes.size() + 1);
        x.out = out.data();
        if (what_.kind == operation::alltoall) x.out_rows = e.shape.front();
      }
      given_.push_back(x.out);
      r.tensors.push_back(std::move(x));
    }
    return r;
  }
  template <class E>
  void submit(E& engine, int process_set = 0) {
    end_ = engine.submit(ask(), process_set);
  }

  /// Waits, and compares.
  void finish(const std::vector<int>& absent = {}) const {
    end_.wait(long_enough);
    check(absent);
  }
  void check(const std::vector<int>& absent = {}) const {
    for (std::size_t t = 0; t != what_.types.size(); ++t) {
      const task::expected e = what_.result(rank_, p_, t, absent);
      const result& r = end_.output(t);
      require(r.shape == e.shape, [&] { return text(t) + "a wrong shape"; });
      require(r.type == what_.types[t], [&] { return text(t) + "a wrong type"; });
      require(r.received_splits == e.received, [&] { return text(t) + "wrong received splits"; });
      require((r.data == nullptr) == (given_[t] != nullptr), [&] { return text(t) + "memory of the wrong owner"; });
      const std::byte* const data = r.data ? r.data.get() : given_[t];
      const auto [left, right] = std::mismatch(e.bytes.begin(), e.bytes.end(), data);
      require(left == e.bytes.end(), [&] {
        return text(t) + "a wrong result at byte " + std::to_string(left - e.bytes.begin()) + " of " +
               std::to_string(e.bytes.size());
      });
    }
  }
  /// Waits for an error, and returns "kind: sentence"; empty if there is none.
  [[nodiscard]] std::string failure() const { return failure_of(end_); }
  static std::string failure_of(const handle& h) {
    try {
      h.wait(long_enough);
    } catch (const error& e) {
      return std::string(hvd::name(e.kind())) + ": " + std::string(detail::sentence(e));
    }
    return {};
  }

 private:
  [[nodiscard]] std::string text(std::size_t t) const {
    return std::string(hvd::name(what_.kind)) + " \"" + what_.name + "\" (" + std::string(hvd::name(what_.op)) +
           " of " + std::string(hvd::name(what_.types[t])) + ", " + std::to_string(what_.rows) + " by " +
           std::to_string(what_.width) + ", tensor " + std::to_string(t) + ", seed " + std::to_string(what_.seed) +
           ") on rank " + std::to_string(rank_) + " of " + std::to_string(p_) + ": ";
  }

  task what_;
  int rank_, p_;
  std::vector<std::vector<std::byte>> in_, out_;
  std::vector<std::byte*> given_;
  handle end_;
};

}  // namespace hvd::test
