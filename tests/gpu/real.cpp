// tests/gpu/real.cpp: checks of what runs on GPUs, for real ones: each collective, fused lists, the engine, a rank that
// is killed. tools/gpu-check runs it; on a machine without a GPU it runs on the stand-ins, so that it works when there
// is one.
//
// It uses what users use, and needs nothing but hvd to be compiled:
//   g++ -std=c++20 -Iinclude -I. -Itests tests/gpu/real.cpp -ldl -pthread
#include <hvd/gpu.hpp>
#include <hvd/hvd.hpp>

#include <gpu/check/own_host.hpp>
#include <support/verifiable.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using byte = unsigned char;
using hvd::bfloat16;
using hvd::half;
using hvd::test::expected;
using hvd::test::input;

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

struct settings {
  std::string what;
  int ranks = 1;
  /// How ranks come to use one GPU: each as a host of its own (by NCCL_HOSTID), by NCCL 2.30, or not at all.
  std::string share = "no";
  double limit = 120;
  bool brief = false;   ///< shorter buffers, for a stand-in that takes its time
  double deadline = 3;  ///< after which ranks must have noticed that one is gone
};

template <class T>
std::string type_name() {
  return std::string(hvd::name(hvd::dtype_of<T>));
}

/// One rank, its GPU, and a part of that GPU's memory whose every byte is known before and after each call.
class rank_checks {
 public:
  static constexpr std::size_t arena_bytes = std::size_t{16} << 20;
  static constexpr byte poison = 0xa5;

  rank_checks(hvd::ShmTransport& host, hvd::NcclTransport& device, bool brief)
      : control(host), gpu(device), longest(brief ? 10'007 : 300'007), memory_(device.alloc_shared<byte>(arena_bytes)) {
  }

  hvd::ShmTransport& control;
  hvd::NcclTransport& gpu;
  const std::size_t longest;  ///< elements of a buffer

  [[nodiscard]] int rank() const { return gpu.rank(); }
  [[nodiscard]] int size() const { return gpu.size(); }
  [[nodiscard]] int checks() const { return checks_; }
  [[nodiscard]] int failures() const { return failures_; }

  void that(bool right, const std::string& what, const std::string& how = "") {
    ++checks_;
    if (right) return;
    ++failures_;
    if (failures_ <= 20)
      std::printf("FAILED on rank %d of %d: %s%s%s\n", rank(), size(), what.c_str(), how.empty() ? "" : ": ",
                  how.c_str());
    std::fflush(stdout);
  }

  /// Calls call(in, out) on device memory that holds `in` and has room for `room` elements, or in place with the output
  /// at element `place` of the input; then the output must be `want` (nothing: it may be anything), and nothing else
  /// may have changed. Memory starts off its best alignment.
  template <class T, class F>
  void call(const std::string& what, const std::vector<T>& in, std::size_t room, std::optional<std::size_t> place,
            const std::optional<std::vector<T>>& want, const F& f) {
    constexpr std::size_t guard = 256;
    const std::size_t in_at = guard + sizeof(T), in_bytes = in.size() * sizeof(T);
    const std::size_t after = (in_at + in_bytes + guard) / 16 * 16 + 3 * sizeof(T);
    const std::size_t out_at = place ? in_at + *place * sizeof(T) : after;
    const std::size_t all = std::max(in_at + in_bytes, out_at + room * sizeof(T)) + guard;
    if (all > arena_bytes) throw std::runtime_error(what + " does not fit into the test's memory");
    std::vector<byte> before(all, poison);
    if (in_bytes != 0) std::memcpy(before.data() + in_at, in.data(), in_bytes);
    gpu.copy_to_device(std::span<const byte>(before), memory_.data());
    auto* const base = memory_.data();
    const std::string label =
        what + " of " + std::to_string(in.size()) + " " + type_name<T>() + (place ? " in place" : "");
    try {
      f(reinterpret_cast<T*>(base + in_at), reinterpret_cast<T*>(base + out_at));
    } catch (const std::exception& e) {
      that(false, label, e.what());
      throw;
    }
    std::vector<byte> got(all);
    gpu.copy_to_host(static_cast<const byte*>(base), std::span<byte>(got));
    std::size_t wrong = 0, touched = 0;
    for (std::size_t i = 0; i != room && want; ++i) {
      T x, y = (*want)[i];
      std::memcpy(&x, got.data() + out_at + i * sizeof(T), sizeof(T));
      wrong += std::memcmp(&x, &y, sizeof(T)) != 0 && !(x == y);
    }
    for (std::size_t i = 0; i != all; ++i) {
      if (i < out_at || i >= out_at + room * sizeof(T)) touched += got[i] != before[i];
    }
    that(wrong == 0, label, std::to_string(wrong) + " wrong elements");
    that(touched == 0, label, std::to_string(touched) + " bytes changed that are not the output's");
  }

  /// Device memory for tests that place several tensors in it.
  [[nodiscard]] byte* memory() { return memory_.data(); }

 private:
  hvd::shared_array<byte> memory_;
  int checks_ = 0, failures_ = 0;
};

template <class T, class Op>
std::vector<T> inputs(Op op, std::size_t first, std::size_t n, int rank, int size) {
  std::vector<T> all(n);
  for (std::size_t i = 0; i != n; ++i) all[i] = input<T>(op, first + i, rank, size);
  return all;
}
template <class T, class Op>
std::vector<T> results(Op op, std::size_t first, std::size_t n, int size) {
  std::vector<T> all(n);
  for (std::size_t i = 0; i != n; ++i) all[i] = expected<T>(op, first + i, size);
  return all;
}
template <class T>
std::span<const T> view(const T* data, std::size_t n) {
  return {data, n};
}

template <class T, class Op>
void check_allreduce(rank_checks& c, Op op, const std::string& name) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1024}, c.longest}) {
    const auto in = inputs<T>(op, 0, n, c.rank(), c.size());
    const std::optional want = results<T>(op, 0, n, c.size());
    c.call<T>("allreduce " + name, in, n, std::nullopt, want,
              [&](T* from, T* to) { hvd::allreduce(c.gpu, view(from, n), std::span(to, n), op); });
    if (n == 7 || n == 1024) {
      c.call<T>("allreduce " + name, in, n, 0, want,
                [&](T* from, T*) { hvd::allreduce(c.gpu, std::span(from, n), op); });
    }
  }
}

template <class T>
void check_reductions(rank_checks& c) {
  check_allreduce<T>(c, hvd::sum, "sum");
  check_allreduce<T>(c, hvd::average, "average");
  check_allreduce<T>(c, hvd::max, "max");
  check_allreduce<T>(c, hvd::min, "min");
  check_allreduce<T>(c, hvd::product, "product");
  check_allreduce<T>(c, hvd::scaled(hvd::sum, 2.0, 0.25), "sum, scaled");
}

template <class T>
void check_rooted(rank_checks& c) {
  const auto p = static_cast<std::size_t>(c.size()), me = static_cast<std::size_t>(c.rank());
  for (int root = 0; root != c.size(); ++root) {
    const bool is_root = c.rank() == root;
    const auto at_root = [&](std::vector<T> v) { return is_root ? std::optional(std::move(v)) : std::nullopt; };
    for (const std::size_t n : {std::size_t{1}, std::size_t{4099}}) {
      const auto mine = inputs<T>(hvd::sum, 0, n, c.rank(), c.size());
      c.call<T>("reduce", mine, n, std::nullopt, at_root(results<T>(hvd::sum, 0, n, c.size())),
                [&](T* in, T* out) { hvd::reduce(c.gpu, view(in, n), std::span(out, n), hvd::sum, root); });
      const std::optional of_root = inputs<T>(hvd::sum, 0, n, root, c.size());
      c.call<T>("broadcast", mine, n, std::nullopt, of_root,
                [&](T* in, T* out) { hvd::broadcast(c.gpu, view(in, n), std::span(out, n), root); });
      c.call<T>("broadcast", mine, n, 0, of_root, [&](T* in, T*) { hvd::broadcast(c.gpu, std::span(in, n), root); });
      std::vector<T> all;
      for (int r = 0; r != c.size(); ++r) {
        const auto theirs = inputs<T>(hvd::sum, 0, n, r, c.size());
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      c.call<T>("gather", mine, is_root ? n * p : 0, std::nullopt, at_root(all),
                [&](T* in, T* out) { hvd::gather(c.gpu, view(in, n), std::span(out, is_root ? n * p : 0), root); });
      const auto whole = inputs<T>(hvd::sum, 0, n * p, root, c.size());
      c.call<T>("scatter", is_root ? whole : std::vector<T>(), n, std::nullopt,
                std::vector<T>(whole.begin() + static_cast<std::ptrdiff_t>(me * n),
                               whole.begin() + static_cast<std::ptrdiff_t>((me + 1) * n)),
                [&](T* in, T* out) { hvd::scatter(c.gpu, view(in, is_root ? n * p : 0), std::span(out, n), root); });
    }
  }
}

template <class T>
void check_blocks(rank_checks& c) {
  const auto p = static_cast<std::size_t>(c.size()), me = static_cast<std::size_t>(c.rank());
  for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{16'384}}) {
    c.call<T>("reduce_scatter", inputs<T>(hvd::sum, 0, n * p, c.rank(), c.size()), n, std::nullopt,
              results<T>(hvd::sum, me * n, n, c.size()),
              [&](T* in, T* out) { hvd::reduce_scatter(c.gpu, view(in, n * p), std::span(out, n), hvd::sum); });
    std::vector<T> all, turned;
    for (int r = 0; r != c.size(); ++r) {
      const auto theirs = inputs<T>(hvd::sum, 0, n, r, c.size()), block = inputs<T>(hvd::sum, me * n, n, r, c.size());
      all.insert(all.end(), theirs.begin(), theirs.end());
      turned.insert(turned.end(), block.begin(), block.end());
    }
    c.call<T>("allgather", inputs<T>(hvd::sum, 0, n, c.rank(), c.size()), n * p, std::nullopt, std::optional(all),
              [&](T* in, T* out) { hvd::allgather(c.gpu, view(in, n), std::span(out, n * p)); });
    const auto rows = inputs<T>(hvd::sum, 0, n * p, c.rank(), c.size());
    c.call<T>("alltoall", rows, n * p, std::nullopt, std::optional(turned),
              [&](T* in, T* out) { hvd::alltoall(c.gpu, view(in, n * p), std::span(out, n * p)); });
    c.call<T>("alltoall", rows, n * p, 0, std::optional(turned),
              [&](T* in, T*) { hvd::alltoall(c.gpu, std::span(in, n * p)); });
  }
  // Blocks of different lengths, one of them empty.
  std::vector<std::size_t> counts(p);
  for (std::size_t r = 0; r != p; ++r) counts[r] = r * 501;
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::vector<T> all;
  for (std::size_t r = 0; r != p; ++r) {
    const auto theirs = inputs<T>(hvd::sum, 0, counts[r], static_cast<int>(r), c.size());
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  c.call<T>("allgather_v", inputs<T>(hvd::sum, 0, counts[me], c.rank(), c.size()), total, std::nullopt,
            std::optional(all), [&](T* in, T* out) {
              hvd::allgather_v(c.gpu, view(in, counts[me]), std::span(out, total),
                               std::span<const std::size_t>(counts));
            });
  const std::size_t start =
      std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(me), std::size_t{0});
  c.call<T>("reduce_scatter_v", inputs<T>(hvd::sum, 0, total, c.rank(), c.size()), counts[me], std::nullopt,
            results<T>(hvd::sum, start, counts[me], c.size()), [&](T* in, T* out) {
              hvd::reduce_scatter_v(c.gpu, view(in, total), std::span(out, counts[me]),
                                    std::span<const std::size_t>(counts), hvd::sum);
            });
}

void check_messages(rank_checks& c) {
  if (c.size() < 2) return;
  constexpr std::size_t n = 5000;
  const auto mine = inputs<float>(hvd::sum, 0, n, c.rank(), c.size());
  const bool sends = c.rank() == 0, receives = c.rank() == 1;
  c.call<float>("send and recv", mine, n, std::nullopt,
                receives ? std::optional(inputs<float>(hvd::sum, 0, n, 0, c.size())) : std::nullopt,
                [&](float* in, float* out) {
                  if (sends) hvd::send(c.gpu, view(in, n), 1);
                  if (receives) hvd::recv(c.gpu, std::span(out, n), 0);
                });
  c.gpu.barrier();
}

/// Calls that are queued on a stream follow each other there, without a wait between them.
void check_streams(rank_checks& c) {
  constexpr std::size_t n = 3000;
  const auto& device = *c.gpu.group()->device();
  const hvd::detail::cuda_device::scope current(device);
  const hvd::detail::cuda_stream stream(device.driver());
  const auto op = hvd::average;  // of equal values it changes nothing, however often
  c.call<float>("20 allreduces on a stream", inputs<float>(op, 0, n, c.rank(), c.size()), n, std::nullopt,
                std::optional(results<float>(op, 0, n, c.size())), [&](float* in, float* out) {
                  const hvd::on_stream how{stream.get()};
                  hvd::allreduce(c.gpu, view(in, n), std::span(out, n), op, how);
                  for (int i = 0; i != 19; ++i) hvd::allreduce(c.gpu, std::span(out, n), op, how);
                  device.driver().check(device.driver().stream_synchronize(stream.get()), "cuStreamSynchronize");
                });
}

void check_split(rank_checks& c) {
  const int color = c.rank() % 2;
  hvd::NcclTransport part = c.gpu.split(color, -c.rank());
  const int of_color = (c.size() + 1 - color) / 2;
  c.that(part.size() == of_color && part.rank() == of_color - 1 - c.rank() / 2, "split");
  c.call<std::int32_t>(
      "allreduce in a split group", {c.rank() + 1}, 1, std::nullopt, std::vector<std::int32_t>{[&] {
        std::int32_t sum = 0;
        for (int r = color; r < c.size(); r += 2) sum += r + 1;
        return sum;
      }()},
      [&](std::int32_t* in, std::int32_t* out) { hvd::allreduce(part, view(in, 1), std::span(out, 1)); });
}

template <class T>
double as_double(T x) {
  if constexpr (sizeof(T) == 2)
    return static_cast<double>(static_cast<float>(x));
  else
    return static_cast<double>(x);
}

/// A list of tensors, packed, scaled and converted by hvd's kernels, against double precision.
template <class T>
void check_kernels(rank_checks& c, hvd::dtype wire, double pre, double post, bool average) {
  const std::vector<std::size_t> counts{1, 5, 1000, 4097, c.longest, 33};
  constexpr std::size_t gap = 64;
  std::vector<std::size_t> at;
  std::size_t bytes = gap;
  for (const std::size_t n : counts) {
    at.push_back(bytes + (at.size() % 3) * sizeof(T));
    bytes = (at.back() + n * sizeof(T) + gap + 15) / 16 * 16;
  }
  const auto values = [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::uniform_real_distribution<double> any(-8, 8);
    std::vector<T> all(bytes / sizeof(T));
    for (T& x : all) x = T(static_cast<float>(any(random)));
    return all;
  };
  std::vector<byte> image(bytes, rank_checks::poison);
  std::vector<double> want(bytes / sizeof(T)), size_of_terms(want.size());
  for (int r = 0; r != c.size(); ++r) {
    const std::vector<T> theirs = values(r);
    for (std::size_t i = 0; i != theirs.size(); ++i) {
      const double term = as_double(theirs[i]) * pre * post / (average ? c.size() : 1);
      want[i] += term;
      size_of_terms[i] += std::abs(term);
    }
    for (std::size_t t = 0; t != counts.size() && r == c.rank(); ++t) {
      std::memcpy(image.data() + at[t], theirs.data() + at[t] / sizeof(T), counts[t] * sizeof(T));
    }
  }
  std::vector<bool> inside(bytes, false);
  std::vector<hvd::fused> list;
  for (std::size_t t = 0; t != counts.size(); ++t) {
    auto* const where = reinterpret_cast<std::byte*>(c.memory() + at[t]);
    list.push_back({where, where, counts[t], hvd::dtype_of<T>, wire});
    std::fill_n(inside.begin() + static_cast<std::ptrdiff_t>(at[t]), counts[t] * sizeof(T), true);
  }
  c.gpu.copy_to_device(std::span<const byte>(image), c.memory());
  hvd::FusionBuffer<hvd::NcclTransport> fusion(c.gpu);
  hvd::dynamic_op op;
  op.op = average ? hvd::reduce_op::average : hvd::reduce_op::sum;
  op.prescale = pre;
  op.postscale = post;
  fusion.allreduce(list, op);
  std::vector<byte> got(bytes);
  c.gpu.copy_to_host(static_cast<const byte*>(c.memory()), std::span<byte>(got));

  const auto epsilon = [](hvd::dtype type) {
    switch (type) {
      case hvd::dtype::float16: return 0x1p-11;
      case hvd::dtype::bfloat16: return 0x1p-8;
      case hvd::dtype::float32: return 0x1p-24;
      default: return 0x1p-53;
    }
  };
  // Each rank's term is rounded when it is packed, each sum when it is formed, the result when it is unpacked.
  const double unit = std::max(epsilon(wire), epsilon(hvd::dtype_of<T>)) * (c.size() + 4);
  double worst = 0;
  std::size_t touched = 0;
  for (std::size_t t = 0; t != counts.size(); ++t) {
    for (std::size_t i = 0; i != counts[t]; ++i) {
      T x;
      std::memcpy(&x, got.data() + at[t] + i * sizeof(T), sizeof(T));
      const std::size_t k = at[t] / sizeof(T) + i;
      const double off = std::abs(as_double(x) - want[k]) / (unit * size_of_terms[k] + 0x1p-24);
      worst = off <= worst ? worst : off;  // NaN counts, too
    }
  }
  for (std::size_t i = 0; i != bytes; ++i) touched += !inside[i] && got[i] != image[i];
  const std::string label = "fused " + type_name<T>() + " as " + std::string(hvd::name(wire)) + ", " +
                            std::to_string(pre) + " and " + std::to_string(post) + (average ? ", average" : ", sum");
  c.that(worst <= 1, label, "off by " + std::to_string(worst) + " times what rounding explains");
  c.that(touched == 0, label, std::to_string(touched) + " bytes changed between tensors");
}

void check_all_kernels(rank_checks& c) {
  using hvd::dtype;
  for (const bool average : {false, true}) {
    for (const auto& [pre, post] : {std::pair(1.0, 1.0), std::pair(0.3, 1.7)}) {
      for (const dtype wire : {dtype::float32, dtype::float16, dtype::bfloat16}) {
        check_kernels<float>(c, wire, pre, post, average);
      }
      check_kernels<double>(c, dtype::float64, pre, post, average);
      check_kernels<double>(c, dtype::float32, pre, post, average);
      check_kernels<half>(c, dtype::float16, pre, post, average);
      check_kernels<bfloat16>(c, dtype::bfloat16, pre, post, average);
    }
  }
}

/// Named tensors on GPUs, submitted in another order by each rank.
class engine_checks {
 public:
  explicit engine_checks(rank_checks& c) : c_(c), engine_(c.control, c.gpu.split(0, c.rank())) {}

  template <class T>
  hvd::request asked(hvd::operation kind, const std::string& name, const std::vector<T>& values, bool with_output) {
    const std::size_t bytes = values.size() * sizeof(T);
    const std::size_t where = at_;
    at_ = (at_ + bytes + 64 + 15) / 16 * 16;
    c_.gpu.copy_to_device(std::span(reinterpret_cast<const byte*>(values.data()), bytes), c_.memory() + where);
    hvd::request r;
    r.kind = kind;
    r.name = name;
    hvd::tensor t;
    t.in = reinterpret_cast<const std::byte*>(c_.memory() + where);
    t.out = with_output ? reinterpret_cast<std::byte*>(c_.memory() + where) : nullptr;
    t.type = hvd::dtype_of<T>;
    t.shape = {values.size()};
    t.memory = {hvd::memory_kind::device, c_.gpu.device(), nullptr};
    r.tensors.push_back(std::move(t));
    return r;
  }
  hvd::handle submit(hvd::request r) { return engine_.submit(std::move(r)); }

  template <class T>
  void must_be(const std::string& what, const std::byte* data, const std::vector<T>& want) {
    std::vector<T> got(want.size());
    c_.gpu.copy_to_host(reinterpret_cast<const byte*>(data),
                        std::span(reinterpret_cast<byte*>(got.data()), got.size() * sizeof(T)));
    c_.that(got == want, "engine: " + what);
  }

  void run() {
    const int p = c_.size(), me = c_.rank();
    const auto ranks = static_cast<std::size_t>(p), own = static_cast<std::size_t>(me);
    for (int step = 0; step != 3; ++step) {
      at_ = 0;
      constexpr std::size_t tensors = 30;
      std::vector<hvd::request> requests;
      std::vector<const std::byte*> where;
      for (std::size_t t = 0; t != tensors; ++t) {
        const std::size_t n = t == 7 ? 270'000 : 1 + t * 37;  // one that travels without a copy
        requests.push_back(asked(hvd::operation::allreduce, "gradient" + std::to_string(t),
                                 inputs<float>(hvd::average, t, n, me, p), true));
        requests.back().op = hvd::reduce_op::average;
        where.push_back(requests.back().tensors[0].out);
      }
      std::vector<hvd::handle> handles(tensors);
      for (std::size_t t = 0; t != tensors; ++t) {
        const std::size_t mine = (t + own * 11) % tensors;
        handles[mine] = submit(std::move(requests[mine]));
      }
      for (const hvd::handle& h : handles) {
        h.wait_queued();
        c_.that(h.device_event() != nullptr, "engine: an event to wait for");
      }
      for (std::size_t t = 0; t != tensors; ++t) {
        handles[t].wait();
        const std::size_t n = t == 7 ? 270'000 : 1 + t * 37;
        must_be("allreduce", where[t], results<float>(hvd::average, t, n, p));
      }

      const auto mine = inputs<float>(hvd::sum, 0, 12 * ranks, me, p);
      hvd::request b = asked(hvd::operation::broadcast, "broadcast", mine, true);
      b.root = p - 1;
      const std::byte* const broadcast_at = b.tensors[0].out;
      const hvd::handle broadcast = submit(std::move(b));
      const hvd::handle gathered =
          submit(asked(hvd::operation::allgather, "gather", inputs<float>(hvd::sum, 0, own + 1, me, p), false));
      const hvd::handle scattered = submit(asked(hvd::operation::reduce_scatter, "scatter", mine, false));
      const hvd::handle turned = submit(asked(hvd::operation::alltoall, "turn", mine, false));
      for (const hvd::handle& h : {broadcast, gathered, scattered, turned}) h.wait();
      std::vector<float> all, blocks;
      for (int r = 0; r != p; ++r) {
        const auto theirs = inputs<float>(hvd::sum, 0, static_cast<std::size_t>(r) + 1, r, p),
                   block = inputs<float>(hvd::sum, own * 12, 12, r, p);
        all.insert(all.end(), theirs.begin(), theirs.end());
        blocks.insert(blocks.end(), block.begin(), block.end());
      }
      must_be("broadcast", broadcast_at, inputs<float>(hvd::sum, 0, 12 * ranks, p - 1, p));
      must_be("allgather", gathered.output().data.get(), all);
      must_be("reduce_scatter", scattered.output().data.get(), results<float>(hvd::sum, own * 12, 12, p));
      must_be("alltoall", turned.output().data.get(), blocks);
    }
  }

 private:
  rank_checks& c_;
  hvd::Engine<hvd::ShmTransport, hvd::NcclTransport> engine_;
  std::size_t at_ = 0;
};

void check_everything(rank_checks& c) {
  check_reductions<float>(c);
  check_reductions<double>(c);
  check_reductions<half>(c);
  check_reductions<bfloat16>(c);
  check_reductions<std::int32_t>(c);
  check_reductions<std::int64_t>(c);
  check_allreduce<std::uint8_t>(c, hvd::sum, "sum");
  check_allreduce<std::int8_t>(c, hvd::max, "max");
  check_allreduce<std::complex<float>>(c, hvd::sum, "sum");
  check_rooted<float>(c);
  check_rooted<std::uint32_t>(c);
  check_blocks<double>(c);
  check_blocks<bfloat16>(c);
  check_messages(c);
  check_streams(c);
  check_split(c);
  check_all_kernels(c);
  engine_checks(c).run();
}

/// The last rank ends without a word; the engine of each other rank, and then its NcclTransport, must say so in time.
void check_loss(rank_checks& c, double deadline) {
  engine_checks engine(c);
  const std::vector<float> ones(1000, 1.0F);
  hvd::handle first = engine.submit(engine.asked(hvd::operation::allreduce, "first", ones, true));
  first.wait();
  if (c.rank() == c.size() - 1) ::kill(::getpid(), SIGKILL);
  const auto must_fail = [&](const std::string& what, double limit, const auto& f) {
    const auto start = clock_type::now();
    try {
      f();
      c.that(false, what, "it went on without the rank that was killed");
    } catch (const hvd::error& e) {
      const double took = seconds_since(start);
      c.that(took < limit, what, "the error came after " + std::to_string(took) + " s");
      if (c.rank() == 0) std::printf("%s: after %.2f s: %s\n", what.c_str(), took, e.what());
    }
  };
  must_fail("engine", deadline + 5, [&] {
    for (int i = 0; i != 3; ++i) {
      engine.submit(engine.asked(hvd::operation::allreduce, "then" + std::to_string(i), ones, true)).wait();
    }
  });
  must_fail("NcclTransport", deadline + 15,
            [&] { hvd::allreduce(c.gpu, std::span(reinterpret_cast<float*>(c.memory()), 1000)); });
}

int rank_main(const settings& s, const std::string& job, int rank) {
  if (s.share == "hostid") hvd::test::be_own_host(rank);
  try {
    hvd::sharing_options sharing;
    hvd::nccl_options options;
    options.device = s.share == "no" ? rank : 0;
    options.ranks_per_device = s.share == "no" ? 1 : s.ranks;
    options.timeout = s.what == "kill" ? 15s : 60s;
    options.start_timeout = 60s;
    hvd::ShmTransport control(job, rank, s.ranks, sharing);
    hvd::NcclTransport gpu(control, options);
    if (rank == 0) {
      std::printf("%s, %d rank(s), GPU %s, NCCL %s\n", s.what.c_str(), s.ranks, gpu.device_uuid().c_str(),
                  hvd::NcclTransport::library().c_str());
      std::fflush(stdout);
    }
    rank_checks c(control, gpu, s.brief);
    if (s.what == "kill") {
      check_loss(c, s.deadline);
    } else {
      check_everything(c);
      control.barrier();
    }
    if (rank == 0) std::printf("%d checks on rank 0, %d failed\n", c.checks(), c.failures());
    std::fflush(stdout);
    return c.failures() == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::printf("FAILED on rank %d: %s\n", rank, e.what());
    std::fflush(stdout);
    return 1;
  }
}

/// Starts the ranks, as processes that have nothing of CUDA yet, and waits. 0 if all have ended as they should.
int run(const settings& s) {
  const std::string job =
      "real-" + std::to_string(::getpid()) + "-" + std::to_string(clock_type::now().time_since_epoch().count());
  std::vector<pid_t> ranks;
  std::fflush(stdout);
  for (int r = 0; r != s.ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int code = rank_main(s, job, r);
      std::fflush(stdout);
      std::_Exit(code);
    }
    ranks.push_back(pid);
  }
  const auto start = clock_type::now();
  std::size_t left = ranks.size();
  bool good = true;
  while (left != 0) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      --left;
      const bool victim = s.what == "kill" && ended == ranks.back();
      const bool right = victim ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (!right) {
        good = false;
        const auto r = std::find(ranks.begin(), ranks.end(), ended) - ranks.begin();
        std::printf("rank %d ended with %s %d\n", static_cast<int>(r), WIFSIGNALED(status) ? "signal" : "exit code",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      }
      continue;
    }
    if (seconds_since(start) > s.limit) {
      std::printf("FAILED: not done after %g s\n", s.limit);
      for (const pid_t p : ranks) ::kill(p, SIGKILL);
      while (::waitpid(-1, nullptr, 0) > 0) {
      }
      return 1;
    }
    ::usleep(5000);
  }
  std::printf("%s: %s after %.1f s\n", s.what.c_str(), good ? "ok" : "FAILED", seconds_since(start));
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  s.what = argc > 1 ? argv[1] : "";
  bool good = s.what == "all" || s.what == "kill";
  for (int i = 2; i < argc && good; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--brief") {
      s.brief = true;
      --i;
      continue;
    }
    if (flag == "-n") {
      s.ranks = std::atoi(value.c_str());
    } else if (flag == "--share") {
      s.share = value;
    } else if (flag == "--limit") {
      s.limit = std::atof(value.c_str());
    } else {
      good = false;
    }
  }
  good = good && s.ranks >= 1 && s.ranks <= 16 && (s.share == "no" || s.share == "hostid" || s.share == "nccl");
  if (!good) {
    std::fprintf(stderr, "usage: %s all|kill [-n RANKS] [--share no|hostid|nccl] [--limit SECONDS] [--brief]\n",
                 argv[0]);
    return 2;
  }
  return run(s);
}
