// tests/fusion.cpp: batches of tensors in one collective, on every kind of transport.
#include <hvd/fusion.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/transport/simulated.hpp>

#include "support/front_door.hpp"
#include "support/messages_only.hpp"
#include "support/require.hpp"
#include "support/verifiable.hpp"
#include "transport/launchers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace hvd::test;
using hvd::dtype;
using hvd::fused;
using hvd::FusionBuffer;
using hvd::reduce_op;

struct on_messages {
  template <class F>
  static void run(int size, const F& f) {
    on_processes::run(size, [&](hvd::ShmTransport& world) {
      MessagesOnly comm(world.split(0, world.rank()));
      f(comm);
    });
  }
};
struct on_simulated {
  template <class F>
  static void run(int size, const F& f) {
    CHECK_NOTHROW(hvd::simulate(size, {.between = {.latency = 1e-6, .bandwidth = 1e10}}, f));
  }
};

/// f(transport) on groups of 1 to 4 ranks of each kind.
template <class F>
void on_all(const F& f) {
  on_self::run(1, f);
  for (const int size : {1, 2, 3, 4}) {
    on_threads::run(size, f);
    on_processes::run(size, f);
    on_simulated::run(size, f);
  }
  for (const int size : {2, 3}) on_messages::run(size, f);
}

constexpr std::size_t unlimited = std::size_t{128} << 20;

/// f(T()) for the type that `type` stands for.
template <class F>
void with_type(dtype type, const F& f) {
  std::apply([&](auto... value) { ((hvd::dtype_of<decltype(value)> == type ? f(value) : void()), ...); },
             hvd::detail::dtypes());
}
template <class F>
void with_op(reduce_op op, const F& f) {
  switch (op) {
    case reduce_op::average: return f(hvd::average);
    case reduce_op::sum: return f(hvd::sum);
    case reduce_op::min: return f(hvd::min);
    case reduce_op::max: return f(hvd::max);
    case reduce_op::product: return f(hvd::product);
    case reduce_op::adasum: break;
  }
}
constexpr reduce_op elementwise[] = {reduce_op::average, reduce_op::sum, reduce_op::min, reduce_op::max,
                                     reduce_op::product};

template <class T, class Op>
constexpr bool defined() {
  if constexpr (std::is_same_v<Op, hvd::min_t> || std::is_same_v<Op, hvd::max_t>) {
    return hvd::detail::is_ordered<T>;
  } else {
    return hvd::detail::is_number<T>;
  }
}

/// One call where == makes several for each byte of what is not optimised.
bool same_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// Tensors with known results. Each knows how to fill itself and what must come out.
class batch {
 public:
  batch(int rank, int size) : rank_(rank), size_(size) {}

  /// Of what reductions are defined for; others are left out.
  template <class Op>
  void add(dtype type, std::size_t count, bool in_place, const Op& op, std::optional<dtype> wire = {}) {
    with_type(type, [&]<class T>(T) {
      if constexpr (defined<T, Op>()) {
        const std::size_t seed = 1000 * all_.size();
        tensor t{std::vector<std::byte>(count * sizeof(T)), std::vector<std::byte>(count * sizeof(T)), {}, in_place};
        for (std::size_t i = 0; i != count; ++i) {
          put(t.in, i, input<T>(op, seed + i, rank_, size_));
          put(t.expected, i, expected<T>(op, seed + i, size_));
        }
        t.type = type;
        t.wire = wire.value_or(type);
        t.count = count;
        all_.push_back(std::move(t));
      }
    });
  }
  template <class T>
  static void put(std::vector<std::byte>& to, std::size_t i, const T& value) {
    std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
  }

  /// Views of fresh copies of the inputs.
  std::vector<fused> views() {
    std::vector<fused> result;
    for (tensor& t : all_) {
      t.data = t.in;
      t.out.assign(t.in.size(), std::byte{0x5a});
      result.push_back({t.data.data(), t.in_place ? t.data.data() : t.out.data(), t.count, t.type, t.wire});
      if (t.count == 0) result.back().in = result.back().out = nullptr;
    }
    return result;
  }
  void check(const std::string& what) const {
    for (std::size_t i = 0; i != all_.size(); ++i) {
      const tensor& t = all_[i];
      require(equal(t.type, t.in_place ? t.data : t.out, t.expected), [&] {
        return what + ", rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": tensor " +
               std::to_string(i) + " of " + std::string(name(t.type)) + " as " + std::string(name(t.wire)) +
               " is wrong";
      });
      require(t.in_place || same_bytes(t.data, t.in), "an input was changed");
    }
  }
  [[nodiscard]] std::size_t bytes() const {
    std::size_t all = 0;
    for (const tensor& t : all_) all += hvd::detail::round_up(t.count * size_of(t.wire), 64);
    return all;
  }

 private:
  /// As numbers: the sign of a zero may depend on the order of a product's factors.
  static bool equal(dtype type, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    if (same_bytes(a, b)) return true;
    bool all = false;
    with_type(type, [&]<class T>(T) {
      all = true;
      for (std::size_t i = 0; i != a.size(); i += sizeof(T)) {
        T x, y;
        std::memcpy(&x, &a[i], sizeof(T));
        std::memcpy(&y, &b[i], sizeof(T));
        all = all && x == y;
      }
    });
    return all;
  }
  struct tensor {
    std::vector<std::byte> in, expected, out;
    bool in_place;
    std::vector<std::byte> data{};
    dtype type{}, wire{};
    std::size_t count = 0;
  };
  int rank_, size_;
  std::vector<tensor> all_;
};

template <class T>
std::byte* bytes_of(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}
/// In place.
template <class T>
fused view(std::vector<T>& v, dtype wire = hvd::dtype_of<T>) {
  return {bytes_of(v), bytes_of(v), v.size(), hvd::dtype_of<T>, wire};
}

}  // namespace

TEST_CASE("allreduce: every operation on every type, in place and not, in one batch") {
  on_all([](auto& comm) {
    for (const reduce_op op : elementwise) {
      batch b(comm.rank(), comm.size());
      with_op(op, [&](auto typed) {
        const std::size_t counts[] = {7, 0, 300, 1, 2051};
        for (int i = 0; i != 30; ++i) {
          b.add(static_cast<dtype>(i % 15), counts[i % 5], i % 2 == 0, typed);
        }
      });
      for (const std::size_t threshold : {std::size_t{0}, std::size_t{1000}, b.bytes(), unlimited}) {
        FusionBuffer buffer(comm, threshold);
        const auto views = b.views();
        buffer.allreduce(views, op);
        b.check(std::string(name(op)) + ", threshold " + std::to_string(threshold));
      }
    }
  });
}

TEST_CASE("allreduce: scaled before and after") {
  on_all([](auto& comm) {
    for (const reduce_op op : {reduce_op::sum, reduce_op::average}) {
      const double post = op == reduce_op::sum ? 0.25 : 1.5 * comm.size();
      batch b(comm.rank(), comm.size());
      const auto add = [&](auto typed) {
        for (int i = 0; i != 15; ++i) {
          if (static_cast<dtype>(i) == dtype::boolean) continue;
          b.add(static_cast<dtype>(i), 40 + static_cast<std::size_t>(i) * 100, i % 2 == 0,
                hvd::scaled(typed, 2.0, post));
        }
      };
      op == reduce_op::sum ? add(hvd::sum) : add(hvd::average);
      for (const std::size_t threshold : {std::size_t{0}, std::size_t{4096}, unlimited}) {
        FusionBuffer buffer(comm, threshold);
        const auto views = b.views();
        buffer.allreduce(views, {op, 2.0, post});
        b.check(std::string(name(op)) + " scaled, threshold " + std::to_string(threshold));
      }
    }
  });
}

TEST_CASE("allreduce: tensors travel as narrower types") {
  on_all([](auto& comm) {
    for (const reduce_op op : elementwise) {
      if (op == reduce_op::min || op == reduce_op::max) continue;  // inputs that bfloat16 cannot hold
      batch b(comm.rank(), comm.size());
      with_op(op, [&](auto typed) {
        for (const std::size_t count :
             {std::size_t{1}, std::size_t{0}, std::size_t{7}, std::size_t{1000}, std::size_t{70001}}) {
          b.add(dtype::float32, count, true, typed, dtype::float16);
          b.add(dtype::float32, count, false, typed, dtype::bfloat16);
          b.add(dtype::float64, count, true, typed, dtype::float32);
          b.add(dtype::float16, count, false, typed);
          b.add(dtype::float32, count, true, typed);
        }
      });
      for (const std::size_t threshold : {std::size_t{0}, std::size_t{1000}, std::size_t{100000}, unlimited}) {
        FusionBuffer buffer(comm, threshold);
        const auto views = b.views();
        buffer.allreduce(views, op);
        b.check(std::string(name(op)) + " converted, threshold " + std::to_string(threshold));
      }
    }
  });
}

TEST_CASE("allreduce: a conversion is scaled before it rounds, so that large sums fit") {
  on_all([](auto& comm) {
    std::vector<float> large(3000, 49152.0f), other(5, 1.0f);
    FusionBuffer buffer(comm);
    const fused tensors[] = {view(large, dtype::float16), view(other)};
    buffer.allreduce(tensors, hvd::scaled(hvd::sum, 1.0 / 4, 4.0 / comm.size()));
    require(large == std::vector<float>(3000, 49152.0f), "a sum that overflows");
    require(other == std::vector<float>(5, 1.0f), "beside it");
  });
}

TEST_CASE("allreduce: long tensors of odd lengths, against the threshold") {
  const auto body = [](auto& comm) {
    batch b(comm.rank(), comm.size());
    for (const bool in_place : {true, false}) {
      for (const std::size_t count :
           {std::size_t{1000003}, std::size_t{7}, std::size_t{0}, std::size_t{1}, std::size_t{65536}}) {
        if (sanitized && count > 100000) continue;
        b.add(dtype::float32, count, in_place, hvd::sum);
        b.add(dtype::int8, count, in_place, hvd::sum);
        b.add(dtype::float32, count, in_place, hvd::sum, dtype::bfloat16);
      }
    }
    for (const std::size_t threshold : {std::size_t{1} << 20, b.bytes(), unlimited}) {
      FusionBuffer buffer(comm, threshold);
      const auto views = b.views();
      buffer.allreduce(views, reduce_op::sum);
      b.check("threshold " + std::to_string(threshold));
      require(buffer.bytes() <= threshold, "the buffer is larger than the threshold");
    }
  };
  on_threads::run(2, body);
  on_processes::run(3, body);
  on_messages::run(3, body);
  on_simulated::run(2, body);
}

TEST_CASE("many batches, with ranks that are late in turns") {
  const auto body = [](auto& comm) {
    FusionBuffer buffer(comm, std::size_t{1} << 18);
    std::mt19937 dice(7);  // the same on all ranks
    for (int round = 0; round != 40; ++round) {
      batch b(comm.rank(), comm.size());
      const std::size_t tensors = dice() % 12;
      for (std::size_t i = 0; i != tensors; ++i) {
        const std::size_t counts[] = {dice() % 30, dice() % 3000, dice() % 50000};
        const bool narrow = dice() % 3 == 0;
        b.add(dtype::float32, counts[dice() % 3], dice() % 2 == 0, hvd::average,
              narrow ? std::optional(dtype::float16) : std::nullopt);
        b.add(dtype::int32, counts[dice() % 3], dice() % 2 == 0, hvd::average);
      }
      const auto views = b.views();
      const int late = static_cast<int>(dice() % 5);
      if (late == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      buffer.allreduce(views, reduce_op::average);
      b.check("round " + std::to_string(round));
    }
  };
  for (const int size : {2, 3, 4}) {
    on_threads::run(size, body);
    on_processes::run(size, body);
  }
  on_messages::run(3, body);
}

TEST_CASE("with common memory a tensor's bits depend on nothing else in the batch") {
  const auto body = [](auto& comm) {
    std::mt19937 dice(static_cast<unsigned>(comm.rank()));
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> tensors;
    std::vector<std::vector<hvd::half>> halves;
    for (const std::size_t n : {3U, 1000U, 77777U, 16U, 200U}) {
      tensors.emplace_back(n);
      halves.emplace_back(n);
      for (float& x : tensors.back()) x = normal(dice);
      for (auto& x : halves.back()) x = hvd::half(normal(dice));
    }
    auto alone = tensors;
    auto halves_alone = halves;
    for (auto& t : alone) hvd::allreduce(comm, t, hvd::scaled(hvd::average, 0.3, 1.7));
    for (auto& t : halves_alone) hvd::allreduce(comm, t, hvd::scaled(hvd::average, 0.3, 1.7));
    FusionBuffer buffer(comm);
    for (const std::size_t first : {0U, 2U, 4U}) {
      auto copies = tensors;
      auto half_copies = halves;
      std::vector<fused> views;
      for (std::size_t i = first; i != copies.size(); ++i) {
        views.push_back(view(half_copies[i]));
        views.push_back(view(copies[i]));
      }
      buffer.allreduce(views, hvd::scaled(hvd::average, 0.3, 1.7));
      for (std::size_t i = first; i != copies.size(); ++i) {
        require(copies[i] == alone[i], "other bits than alone");
        require(std::memcmp(half_copies[i].data(), halves_alone[i].data(), 2 * halves[i].size()) == 0, "halves too");
      }
    }
  };
  for (const int size : {2, 3}) {
    on_threads::run(size, body);
    on_processes::run(size, body);
  }
}

TEST_CASE("buckets are reduced where they are, if they lie alike on all ranks") {
  on_all([](auto& comm) {
    using transport = std::remove_reference_t<decltype(comm)>;
    FusionBuffer buffer(comm);
    auto bucket = buffer.template bucket<float>(40000);
    const std::size_t lengths[] = {7, 20000, 1, 64, 9000};
    const auto p = static_cast<float>(comm.size());
    for (const bool alike : {true, false}) {
      std::vector<float> beside(500, static_cast<float>(comm.rank()));
      std::vector<fused> views;
      std::size_t at = alike || comm.rank() == 0 ? 0 : 64;
      for (std::size_t i = 0; i != bucket.size(); ++i) bucket[i] = static_cast<float>(comm.rank() + 1);
      for (const std::size_t n : lengths) {
        auto* const data = reinterpret_cast<std::byte*>(bucket.data() + at);
        views.push_back({data, data, n, dtype::float32});
        at += n + 3;
      }
      const auto chunks = [&] {
        if constexpr (hvd::PeerMemory<transport>) return comm.peers().staging().plan(0, 0).first;
        return std::uint64_t{0};
      };
      const std::uint64_t before = chunks();
      buffer.allreduce(views, reduce_op::sum);
      require(!alike || chunks() == before, "parts of a bucket were packed");
      if (hvd::PeerMemory<transport> && comm.size() > 1)
        require(alike || chunks() != before, "and what lies elsewhere was not");
      views.push_back(view(beside));
      buffer.allreduce(views, reduce_op::average);
      std::size_t i = alike || comm.rank() == 0 ? 0 : 64;
      for (const std::size_t n : lengths) {
        for (const std::size_t end = i + n; i != end; ++i) require(bucket[i] == p * (p + 1) / 2, "in a bucket");
        for (const std::size_t end = i + 3; i != end; ++i)
          require(bucket[i] == static_cast<float>(comm.rank() + 1), "between");
      }
      require(beside == std::vector<float>(500, (p - 1) / 2), "beside a bucket");
    }
  });
}

TEST_CASE("a bucket holds all results when the call returns") {
  const auto body = [](auto& comm) {
    FusionBuffer buffer(comm);
    auto bucket = buffer.template bucket<float>(60000);
    std::vector<fused> halves;
    for (const std::size_t at : {0U, 30000U}) {
      auto* const data = reinterpret_cast<std::byte*>(bucket.data() + at);
      halves.push_back({data, data, 30000, dtype::float32});
    }
    for (int round = 1; round != 150; ++round) {
      for (float& x : bucket) x = static_cast<float>(round);
      buffer.allreduce(halves);
      const auto sum = static_cast<float>(round * comm.size());
      require(std::all_of(bucket.begin(), bucket.end(), [&](float x) { return x == sum; }), "a result came late");
    }
  };
  on_threads::run(4, body);
  on_processes::run(3, body);
}

TEST_CASE("broadcast: every type at once, from each root") {
  on_all([](auto& comm) {
    const auto value = [](std::size_t tensor, std::size_t i, int root) {
      return static_cast<std::byte>(draw(i, root, static_cast<int>(tensor)));
    };
    for (const std::size_t threshold : {std::size_t{0}, std::size_t{3000}, unlimited}) {
      FusionBuffer buffer(comm, threshold);
      for (int root = 0; root != comm.size(); ++root) {
        for (const std::size_t scale : {std::size_t{1}, std::size_t{900}}) {
          std::vector<std::vector<std::byte>> in, out;
          std::vector<fused> views;
          for (std::size_t t = 0; t != 15; ++t) {
            const auto type = static_cast<dtype>(t);
            const std::size_t count = t * scale % 1001;
            in.emplace_back(count * size_of(type));
            for (std::size_t i = 0; i != in[t].size(); ++i) in[t][i] = value(t, i, comm.rank());
            out.emplace_back(in[t].size());
          }
          for (std::size_t t = 0; t != 15; ++t) {
            const bool sends = comm.rank() == root;
            const auto type = static_cast<dtype>(t);
            views.push_back({sends ? in[t].data() : nullptr, t % 2 == 0 && sends ? in[t].data() : out[t].data(),
                             in[t].size() / size_of(type), type});
          }
          buffer.broadcast(views, root);
          for (std::size_t t = 0; t != 15; ++t) {
            for (std::size_t i = 0; i != in[t].size(); ++i) {
              require(views[t].out[i] == value(t, i, root), [&] { return "broadcast of tensor " + std::to_string(t); });
            }
          }
        }
      }
    }
  });
}

TEST_CASE("allgather and reduce_scatter: uneven blocks, in place and not") {
  on_all([](auto& comm) {
    const auto ranks = static_cast<std::size_t>(comm.size()), own = static_cast<std::size_t>(comm.rank());
    for (const std::size_t scale : {std::size_t{1}, std::size_t{50}, std::size_t{9000}}) {
      std::vector<std::vector<std::size_t>> counts;
      for (std::size_t t = 0; t != 5; ++t) {
        counts.emplace_back();
        for (std::size_t r = 0; r != ranks; ++r) counts[t].push_back(t == 3 ? 16 : (t + r * 2) % 5 * scale);
      }
      const auto total = [&](std::size_t t) { return hvd::detail::sum_of(counts[t], ranks); };
      const auto start = [&](std::size_t t) { return hvd::detail::sum_of(counts[t], own); };
      for (const std::size_t threshold : {std::size_t{0}, std::size_t{100000}, unlimited}) {
        FusionBuffer buffer(comm, threshold);
        // Tensor t of int32 for even t and of float for odd t, which travels as bfloat16 for t = 1.
        std::vector<std::vector<std::int32_t>> ints(5), int_results(5);
        std::vector<std::vector<float>> floats(5), float_results(5);
        std::vector<fused> scattered, gathered;
        for (std::size_t t = 0; t != 5; ++t) {
          for (std::size_t i = 0, n = total(t); i != n; ++i) {
            ints[t].push_back(input<std::int32_t>(hvd::sum, i + t, comm.rank(), comm.size()));
            floats[t].push_back(input<float>(hvd::sum, i + t, comm.rank(), comm.size()));
          }
          const auto add = [&](auto& values, auto& results) {
            const bool in_place = t == 2 || t == 3;
            results[t].resize(total(t));
            const dtype type = hvd::dtype_of<std::remove_reference_t<decltype(values[t][0])>>;
            const std::size_t unit = size_of(type);
            std::byte* const block = bytes_of(in_place ? values[t] : results[t]) + start(t) * unit;
            scattered.push_back({bytes_of(values[t]), block, total(t), type, t == 1 ? dtype::bfloat16 : type});
            gathered.push_back({block, bytes_of(in_place ? values[t] : results[t]), counts[t][own], type});
          };
          t % 2 == 0 ? add(ints, int_results) : add(floats, float_results);
        }
        buffer.reduce_scatter(scattered, counts);
        buffer.allgather(gathered, counts);
        for (std::size_t t = 0; t != 5; ++t) {
          const auto check = [&](auto& values, auto& results) {
            using T = std::remove_reference_t<decltype(values[t][0])>;
            const auto& all = t == 2 || t == 3 ? values[t] : results[t];
            for (std::size_t i = 0, n = total(t); i != n; ++i) {
              require(all[i] == expected<T>(hvd::sum, i + t, comm.size()),
                      [&] { return "tensor " + std::to_string(t) + ", element " + std::to_string(i); });
            }
          };
          t % 2 == 0 ? check(ints, int_results) : check(floats, float_results);
        }
      }
    }
  });
}

TEST_CASE("lists of tensors of several types, in place and not, by every operation object") {
  on_all([](auto& comm) {
    const auto check = [&](const auto& op) {
      std::vector<float> a(70), b(3000), c(5), result(5);
      std::vector<std::int32_t> d(11);
      const auto fill = [&](auto& v, std::size_t seed) {
        using T = std::remove_reference_t<decltype(v[0])>;
        for (std::size_t i = 0; i != v.size(); ++i) v[i] = input<T>(op, seed + i, comm.rank(), comm.size());
      };
      const auto verify = [&](const auto& v, std::size_t seed) {
        using T = std::remove_cvref_t<decltype(v[0])>;
        for (std::size_t i = 0; i != v.size(); ++i) {
          require(v[i] == expected<T>(op, seed + i, comm.size()), [&] { return "element " + std::to_string(i); });
        }
      };
      fill(a, 0), fill(b, 100), fill(c, 200), fill(d, 300);
      hvd::tensor_list list = hvd::tensors(a, std::span(b), d);
      hvd::allreduce(comm, list.add(c, result), op);
      verify(a, 0), verify(b, 100), verify(result, 200), verify(d, 300);
    };
    check(hvd::sum);
    check(hvd::average);
    check(hvd::max);
    check(hvd::scaled(hvd::sum, 2.0, 0.5));
    std::vector<std::vector<double>> parts(5);
    for (std::size_t t = 0; t != 5; ++t) parts[t].assign(100 * t, comm.rank() + static_cast<double>(t));
    hvd::broadcast(comm, hvd::tensors(parts), comm.size() - 1);
    for (std::size_t t = 0; t != 5; ++t) {
      require(parts[t] == std::vector<double>(100 * t, comm.size() - 1 + static_cast<double>(t)), "broadcast");
    }
    hvd::allreduce(comm, hvd::tensor_list());
  });
}

TEST_CASE("lists that differ between ranks, or overlap, are refused, also where they are small") {
  on_threads::run(2, [](auto& comm) {
    const auto refused = [&](hvd::error_kind kind, const std::string& words, const auto& call) {
      std::string said;
      try {
        call();
      } catch (const hvd::error& e) {
        if (e.kind() == kind) said = e.what();
      }
      require(said.find(words) != std::string::npos, [&] { return "wrong: " + said + ", wanted: " + words; });
    };
    for (const std::size_t n : std::initializer_list<std::size_t>{32, 512, 1024, 100'000}) {
      std::vector<float> a(n, 1.0f), b(16, 10.0f);
      refused(hvd::error_kind::mismatch, "in different calls: ", [&] {
        hvd::allreduce(comm, comm.rank() == 1 ? hvd::tensors(b, a) : hvd::tensors(a, b));
      });
      refused(hvd::error_kind::mismatch, "in different calls: ", [&] {
        hvd::broadcast(comm, comm.rank() == 1 ? hvd::tensors(b, a) : hvd::tensors(a, b));
      });
    }
  });
  on_processes::run(2, [](hvd::ShmTransport& world) {
    std::vector<float> w(100, 1.0f);
    hvd::sharing_options checked;
    checked.failure.check = true;
    hvd::ShmTransport comm(world, checked);
    std::string said;
    try {
      hvd::allreduce(comm, hvd::tensors(w, std::span(w).last(1)));
    } catch (const hvd::error& e) {
      said = e.what();
    }
    require(said.find("the outputs of tensors 0 and 1 overlap") != std::string::npos, [&] { return "wrong: " + said; });
    hvd::allreduce(comm, hvd::tensors(w));
    require(w[99] == 2.0f, "the group is usable");
  });
}

TEST_CASE("reduce_scatter: scaled, averaged") {
  on_all([](auto& comm) {
    const auto ranks = static_cast<std::size_t>(comm.size()), own = static_cast<std::size_t>(comm.rank());
    const std::vector<std::vector<std::size_t>> counts(3, std::vector<std::size_t>(ranks, 700));
    const auto op = hvd::scaled(hvd::average, 2.0, 0.5);
    std::vector<std::vector<double>> in(3), out(3);
    std::vector<fused> views;
    for (std::size_t t = 0; t != 3; ++t) {
      for (std::size_t i = 0; i != 700 * ranks; ++i) in[t].push_back(input<double>(op, i, comm.rank(), comm.size()));
      out[t].resize(700);
      views.push_back(
          {bytes_of(in[t]), bytes_of(out[t]), in[t].size(), dtype::float64, t == 1 ? dtype::float32 : dtype::float64});
    }
    FusionBuffer buffer(comm);
    buffer.reduce_scatter(views, counts, op);
    for (std::size_t i = 0; i != 2100; ++i) {
      require(out[i / 700][i % 700] == expected<double>(op, own * 700 + i % 700, comm.size()), "reduce_scatter scaled");
    }
  });
}

TEST_CASE("adasum: each tensor has factors of its own") {
  on_all([](auto& comm) {
    std::mt19937 dice(static_cast<unsigned>(comm.rank()) + 1);
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> tensors;
    for (const std::size_t n : {5U, 0U, 300U, 1U, 4000U}) {
      tensors.emplace_back(n);
      for (float& x : tensors.back()) x = normal(dice);
    }
    const auto alone = [&](auto convert) {
      std::vector<std::vector<float>> results;
      for (const auto& t : tensors) {
        auto v = convert(t);
        hvd::allreduce(comm, v, hvd::sum, hvd::adasum{});
        results.emplace_back(v.begin(), v.end());
      }
      return results;
    };
    const auto same = alone([](const auto& t) { return t; });
    const auto rounded = alone([](const auto& t) {
      std::vector<hvd::bfloat16> v;
      for (const float x : t) v.emplace_back(x);
      return v;
    });
    for (const std::size_t threshold : {std::size_t{0}, std::size_t{1300}, unlimited}) {
      FusionBuffer buffer(comm, threshold);
      for (const bool narrow : {false, true}) {
        auto copies = tensors;
        std::vector<fused> views;
        for (auto& t : copies) views.push_back(view(t, narrow ? dtype::bfloat16 : dtype::float32));
        buffer.allreduce(views, reduce_op::adasum);
        // Vectors are halved where their ends lie in the buffer: products are added up in other parts.
        for (std::size_t t = 0; t != copies.size(); ++t) {
          for (std::size_t i = 0; i != copies[t].size(); ++i) {
            const float wanted = (narrow ? rounded : same)[t][i];
            const float limit = (narrow ? 0x1p-6f : 1e-5f) * (1 + std::abs(wanted));
            require(std::abs(copies[t][i] - wanted) <= limit, [&] { return "adasum of tensor " + std::to_string(t); });
          }
        }
      }
    }
    std::vector<float> parallel(10, 2.0f), other(4, 0.0f);
    const fused scaled[] = {view(parallel), view(other)};
    FusionBuffer(comm).adasum(scaled, 2.0, 0.5);
    require(parallel == std::vector<float>(10, 2.0f) && other == std::vector<float>(4, 0.0f), "adasum, scaled");
  });
}

TEST_CASE("the buffer grows by doubling up to the threshold, and can be given back") {
  on_messages::run(2, [](auto& comm) {
    std::vector<float> a(100, 1.0f), b(100, 1.0f), c(3000, 1.0f);
    FusionBuffer buffer(comm, 10000);
    require(buffer.bytes() == 0 && buffer.threshold() == 10000, "at first");
    const fused few[] = {view(a), view(b)}, more[] = {view(a), view(b), view(c)};
    buffer.allreduce(few);
    require(buffer.bytes() == 1024, "two of 400 bytes, on cache lines");
    buffer.allreduce(more);
    require(buffer.bytes() == 1024, "the third does not fit beside them, and goes by itself");
    const fused others[] = {view(c, dtype::float16), view(a, dtype::float16)};
    buffer.allreduce(others);
    require(buffer.bytes() == 8192, "6208 bytes");
    buffer.release();
    require(buffer.bytes() == 0, "given back");
    buffer.threshold(20000);
    buffer.allreduce(more);
    require(buffer.bytes() == 16384, "12896 bytes");
    require(a[99] == 16.0f && c[2999] == 8.0f, "and the sums are right");
  });
  on_threads::run(2, [](auto& comm) {
    std::vector<float> a(5000, 1.0f), b(5000, 1.0f);
    FusionBuffer buffer(comm);
    const fused tensors[] = {view(a), view(b)};
    buffer.allreduce(tensors);
    require(buffer.bytes() == 0, "common memory needs none");
  });
}

TEST_CASE("nothing to do") {
  on_all([](auto& comm) {
    FusionBuffer buffer(comm);
    buffer.allreduce({});
    buffer.adasum({});
    buffer.broadcast({}, 0);
    buffer.allgather({}, {});
    buffer.reduce_scatter({}, {});
    const fused empty[] = {{nullptr, nullptr, 0, dtype::float32}, {nullptr, nullptr, 0, dtype::int8}};
    const std::vector<std::vector<std::size_t>> counts(2,
                                                       std::vector<std::size_t>(static_cast<std::size_t>(comm.size())));
    buffer.allreduce(empty);
    buffer.adasum(std::span(empty).first(1));
    buffer.broadcast(empty, 0);
    buffer.allgather(empty, counts);
    buffer.reduce_scatter(empty, counts, hvd::max);
  });
}

TEST_CASE("what is wrong is refused before anything is sent") {
  everywhere([](auto& comm) {
    FusionBuffer buffer(comm);
    const auto ranks = static_cast<std::size_t>(comm.size());
    std::vector<float> a(8), b(8);
    std::vector<std::uint8_t> flags(8);
    const auto with = [&](fused second) { return std::vector<fused>{view(a), second}; };
    const auto allreduce = [&](fused second, reduce_op op = reduce_op::sum, double scale = 1.0) {
      return complaint([&] { buffer.allreduce(with(second), {op, scale}); });
    };
    const auto text = [&](hvd::operation kind, const std::string& why) {
      return doctest::String(refused(kind, comm, why).c_str());
    };
    using hvd::operation;
    CHECK(allreduce({nullptr, bytes_of(b), 8, dtype::float32}) ==
          text(operation::allreduce, "the input of tensor 1 is null but has 8 elements"));
    CHECK(allreduce({bytes_of(b), nullptr, 8, dtype::float32}) ==
          text(operation::allreduce, "the output of tensor 1 is null but has 8 elements"));
    CHECK(allreduce({bytes_of(b), bytes_of(b) + 4, 7, dtype::float32}) ==
          text(operation::allreduce, "input and output of tensor 1 overlap; allowed: no common element, or in place"));
    CHECK(allreduce({bytes_of(b), bytes_of(b), 8, dtype::user}) ==
          text(operation::allreduce, "tensor 1 has elements of the type user; allowed: the built-in types"));
    CHECK(allreduce({bytes_of(b), bytes_of(b), 8, dtype::float32, dtype::int32}) ==
          text(operation::allreduce,
               "tensor 1 of float32 cannot have the wire type int32; allowed: float16 and bfloat16 for "
               "float32, float32 for float64"));
    CHECK(allreduce({bytes_of(b), bytes_of(b), at_run_time(0) - 8, dtype::float32}) ==
          text(operation::allreduce,
               "tensor 1 has 18446744073709551608 elements of 4 bytes, more than can be addressed "
               "(a negative count?)"));
    CHECK(allreduce({bytes_of(flags), bytes_of(flags), 8, dtype::boolean}) ==
          text(operation::allreduce,
               "tensor 1: sum of bool is not defined: use max (the logical or) or min (the logical and)"));
    CHECK(
        allreduce({bytes_of(flags), bytes_of(flags), 8, dtype::boolean}, reduce_op::max, 2.0) ==
        text(operation::allreduce, "tensor 1: max of bool cannot be scaled (prescale 2, postscale 1); both must be 1"));
    CHECK(allreduce({bytes_of(flags), bytes_of(flags), 8, dtype::uint8}, reduce_op::adasum) ==
          text(operation::allreduce, "tensor 1: adasum is for float16, bfloat16, float32 and float64, not for uint8"));
    const fused narrow = view(b, dtype::float16);
    CHECK(complaint([&] { buffer.broadcast(with(narrow), 0); }) ==
          text(operation::broadcast,
               "tensor 1 of float32 has the wire type float16; allowed: its own type, because only "
               "reductions convert"));
    CHECK(complaint([&] { buffer.broadcast(with(view(b)), -1); }) ==
          text(operation::broadcast, "root -1 is out of range; allowed: 0 to " + std::to_string(comm.size() - 1)));
    using table = std::vector<std::vector<std::size_t>>;
    const std::vector<std::size_t> eight(ranks, 8), none(ranks, 0), short_one(ranks + 1, 8);
    CHECK(complaint([&] { buffer.allgather(with(view(b)), table{eight}); }) ==
          text(operation::allgather, "counts has 1 entries; allowed: one for each of the 2 tensors"));
    CHECK(complaint([&] {
            buffer.allgather(with(view(b)), table{eight, short_one});
          }) ==
          text(operation::allgather, "counts of tensor 1 has " + std::to_string(ranks + 1) +
                                         " entries; allowed: one for each of the " + std::to_string(ranks) + " ranks"));
    std::vector<float> all(8 * ranks);
    const fused gathered{bytes_of(a), bytes_of(all), 8, dtype::float32};
    CHECK(complaint([&] {
            buffer.allgather(std::vector{gathered, gathered}, table{eight, none});
          }) == text(operation::allgather, "tensor 1 has 8 elements; allowed: 0 (its count for this rank)"));
    const fused scattered{bytes_of(all), bytes_of(a), 8 * ranks, dtype::float32};
    CHECK(complaint([&] {
            buffer.reduce_scatter(std::vector{scattered, scattered}, table{eight, none});
          }) == text(operation::reduce_scatter,
                     "tensor 1 has " + std::to_string(8 * ranks) + " elements; allowed: 0 (the sum of its counts)"));
    buffer.allreduce(with(view(b)));  // and the group can still be used
  });
}

TEST_CASE("ranks with different batches are told so, and go on") {
  const auto body = [](auto& comm) {
    FusionBuffer buffer(comm);
    std::vector<float> a(3000, 1.0f), b(3000, 1.0f), c(3001, 1.0f);
    const auto mismatch = [&](std::initializer_list<fused> mine, reduce_op op = reduce_op::sum) {
      const std::vector<fused> tensors(mine);
      const doctest::String said = complaint([&] { buffer.allreduce(tensors, op); });
      require(std::string(said.c_str()).starts_with("mismatch: hvd: allreduce on rank "), said.c_str());
    };
    const bool first = comm.rank() == 0;
    mismatch({view(a), first ? view(b) : view(c)});
    mismatch({first ? view(a) : view(c), first ? view(c) : view(a)});  // as many elements in all
    mismatch({view(a), first ? view(b) : view(b, dtype::float16)});
    mismatch({view(a), view(b)}, first ? reduce_op::sum : reduce_op::average);
    const fused both[] = {view(a), view(b)};
    buffer.allreduce(both);
    require(b == std::vector<float>(3000, static_cast<float>(comm.size())), "after the mismatches");
  };
  on_threads::run(3, body);
  on_processes::run(2, body);
}

TEST_CASE("wrong arguments on one rank are an error on all, if calls are compared") {
  on_threads::run(
      3,
      [](auto& comm) {
        FusionBuffer buffer(comm);
        std::vector<float> a(3000, 1.0f), b(3000, 1.0f);
        std::vector<fused> tensors{view(a), view(b)};
        if (comm.rank() == 1) tensors[1].in = nullptr;
        const std::string said = complaint([&] { buffer.allreduce(tensors); }).c_str();
        require(said.starts_with("invalid_argument: hvd: allreduce on "), said);
        tensors[1].in = bytes_of(b);
        buffer.allreduce(tensors);
        require(a == std::vector<float>(3000, 3.0f), "after the error");
      },
      with_check(true));
}

TEST_CASE("a rank that is gone is an error on all others") {
  for (const bool in_bucket : {false, true}) {
    left_behind told(3);
    const auto body = [&](auto& comm) {
      FusionBuffer buffer(comm);
      auto bucket = buffer.template bucket<float>(200000);
      std::vector<float> a(100000, 1.0f), b(100000, 1.0f);
      std::vector<fused> tensors{view(a), view(b)};
      if (in_bucket) {
        for (std::size_t i = 0; i != 2; ++i) {
          tensors[i].out = reinterpret_cast<std::byte*>(bucket.data() + i * 100000);
          tensors[i].in = tensors[i].out;
        }
      }
      for (int i = 0; i != 3; ++i) buffer.allreduce(tensors);
      if (comm.rank() == 1) return;
      try {
        buffer.allreduce(tensors);
      } catch (const hvd::error& e) {
        const bool right = e.kind() == hvd::error_kind::peer_lost && e.rank() == 1;
        told[static_cast<std::size_t>(comm.rank())] = right ? 1 : 2;
      }
    };
    on_processes::run(3, body);
    CHECK(told[0] == 1);
    CHECK(told[2] == 1);
    told[0] = told[2] = 0;
    on_threads::run(3, body);
    CHECK(told[0] == 1);
    CHECK(told[2] == 1);
  }
}
