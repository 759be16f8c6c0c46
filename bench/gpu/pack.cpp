// bench/gpu/pack.cpp: hvd's kernels that pack and unpack, against a copy of as many bytes by the driver.
#include <bench/gpu/measure.hpp>

#include <hvd/cuda/copy.hpp>
#include <hvd/dtype.hpp>

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace hvd::bench {
namespace {

using detail::device_part;

/// As the allocator of PyTorch places tensors, and hvd in its buffer.
constexpr std::size_t tensor_alignment = 512, buffer_alignment = 128;
constexpr auto poison = std::byte{0xa5};

constexpr std::size_t aligned(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

std::vector<tensor_group> groups(bool stands_in) {
  return {{stands_in ? "gradients of ResNet-50, cut to 16 KiB" : "gradients of ResNet-50", resnet50_counts(stands_in)},
          {"tensors of 4 KiB", std::vector<std::size_t>(1000, 1024)}};
}

/// Tensors and a buffer on the GPU, and the ways to bring one to the other.
class packing {
 public:
  packing(Gpu& gpu, detail::cuda_copies& copies, tensor_group what)
      : gpu_(gpu), copies_(copies), what_(std::move(what)) {
    for (const std::size_t n : what_.counts) {
      tensor_at_.push_back(tensors_bytes_);
      packed_at_.push_back(packed_bytes_);
      tensors_bytes_ = aligned(tensors_bytes_ + n * sizeof(float) + 1, tensor_alignment);  // a gap behind each
      packed_bytes_ = aligned(packed_bytes_ + n * sizeof(float), buffer_alignment);
      elements_ += n;
    }
    tensors_ = static_cast<std::byte*>(gpu.allocate(tensors_bytes_));
    packed_ = static_cast<std::byte*>(gpu.allocate(packed_bytes_));
    other_ = static_cast<std::byte*>(gpu.allocate(packed_bytes_));
    for (std::size_t t = 0; t != what_.counts.size(); ++t) {
      in_.push_back({tensors_ + tensor_at_[t], packed_ + packed_at_[t], what_.counts[t]});
      half_.push_back({tensors_ + tensor_at_[t], packed_ + packed_at_[t] / 2, what_.counts[t]});
      out_.push_back({packed_ + packed_at_[t], tensors_ + tensor_at_[t], what_.counts[t]});
    }
    events_.fill(nullptr);
    for (auto& e : events_) gpu.driver().check(gpu.driver().event_create(&e, 0), "cuEventCreate");
  }
  packing(const packing&) = delete;
  packing& operator=(const packing&) = delete;
  ~packing() {
    for (auto* const e : events_) gpu_.driver().event_destroy(e);
    for (void* const p : {tensors_, packed_, other_}) gpu_.release(p);
  }

  /// Wrong elements, and bytes written outside of them.
  [[nodiscard]] std::size_t wrong() {
    std::vector<std::byte> tensors(tensors_bytes_, poison), packed(packed_bytes_, poison);
    for (std::size_t t = 0; t != what_.counts.size(); ++t) {
      for (std::size_t i = 0; i != what_.counts[t]; ++i) put(tensors, tensor_at_[t], i, value(t, i));
    }
    const std::vector<std::byte> nothing(tensors_bytes_, poison), nothing_packed(packed_bytes_, poison);
    std::size_t count = 0;

    gpu_.upload(tensors_, tensors.data(), tensors_bytes_);
    gpu_.upload(packed_, nothing_packed.data(), packed_bytes_);
    pack();
    gpu_.download(packed.data(), packed_, packed_bytes_);
    count += differences(packed, packed_at_, packed_bytes_, 1);

    gpu_.upload(tensors_, nothing.data(), tensors_bytes_);
    unpack(1);
    gpu_.download(tensors.data(), tensors_, tensors_bytes_);
    count += differences(tensors, tensor_at_, tensors_bytes_, 1);

    unpack(4);
    gpu_.download(tensors.data(), tensors_, tensors_bytes_);
    count += differences(tensors, tensor_at_, tensors_bytes_, 4);

    unpack(1);  // the values again
    pack_narrow();
    gpu_.download(packed.data(), packed_, packed_bytes_);
    for (std::size_t t = 0; t != what_.counts.size(); ++t) {
      for (std::size_t i = 0; i != what_.counts[t]; ++i) {
        const bfloat16 want(value(t, i));
        count += std::memcmp(packed.data() + packed_at_[t] / 2 + 2 * i, &want, 2) != 0;
      }
    }
    return count;
  }

  /// Prints a row for each way. Whether all results were right.
  bool report(double seconds) {
    const std::size_t bad = wrong();
    const std::size_t bytes = elements_ * sizeof(float);
    struct way {
      const char* name;
      std::size_t moved;  ///< read and written
      std::function<void()> queue;
    };
    const std::array<way, 5> ways{{{"copy by the driver", 2 * bytes,
                                    [&] {
                                      gpu_.driver().check(gpu_.driver().copy_on_device(detail::to_device(other_),
                                                                                       detail::to_device(packed_),
                                                                                       bytes, gpu_.stream()),
                                                          "cuMemcpyDtoDAsync");
                                    }},
                                   {"pack", 2 * bytes, [&] { pack(); }},
                                   {"unpack", 2 * bytes, [&] { unpack(1); }},
                                   {"unpack, divided", 2 * bytes, [&] { unpack(4); }},
                                   {"pack as bfloat16", bytes / 2 * 3, [&] { pack_narrow(); }}}};
    std::vector<std::function<double()>> turns;
    std::array<std::vector<double>, ways.size()> host;
    for (std::size_t w = 0; w != ways.size(); ++w) {
      turns.emplace_back([&, w] {
        double on_host = 0;
        const double us = timed(ways[w].queue, on_host);
        host[w].push_back(on_host);
        return us;
      });
    }
    const std::vector<double> us = in_turns(turns, seconds);
    const double copy = static_cast<double>(ways[0].moved) / us[0];
    for (std::size_t w = 0; w != ways.size(); ++w) {
      const double speed = static_cast<double>(ways[w].moved) / us[w];
      std::printf("| %zu %s | %s | %.1f | %.1f | %.0f | %.1f |\n", what_.counts.size(), what_.name.c_str(),
                  ways[w].name, us[w], speed * 1e-3, 100 * speed / copy, median(host[w]));
    }
    if (bad != 0) std::printf("\n%zu elements or gaps are WRONG\n", bad);
    return bad == 0;
  }

 private:
  /// Small whole numbers, which bfloat16 has too.
  static float value(std::size_t t, std::size_t i) { return static_cast<float>((t * 31 + i) % 255) + 1; }
  static void put(std::vector<std::byte>& to, std::size_t at, std::size_t i, float x) {
    std::memcpy(to.data() + at + i * sizeof x, &x, sizeof x);
  }
  [[nodiscard]] std::size_t differences(const std::vector<std::byte>& got, const std::vector<std::size_t>& starts,
                                        std::size_t end, float divisor) const {
    std::size_t count = 0;
    for (std::size_t t = 0; t != starts.size(); ++t) {
      for (std::size_t i = 0; i != what_.counts[t]; ++i) {
        float x = 0;
        std::memcpy(&x, got.data() + starts[t] + i * sizeof x, sizeof x);
        count += x != value(t, i) / divisor;
      }
      const std::size_t next = t + 1 == starts.size() ? end : starts[t + 1];
      for (std::size_t b = starts[t] + what_.counts[t] * sizeof(float); b != next; ++b) count += got[b] != poison;
    }
    return count;
  }

  void pack() { copies_(in_, dtype::float32, dtype::float32, 1.0, 1, gpu_.stream()); }
  void pack_narrow() { copies_(half_, dtype::float32, dtype::bfloat16, 1.0, 1, gpu_.stream()); }
  void unpack(std::uint32_t divisor) { copies_(out_, dtype::float32, dtype::float32, 1.0, divisor, gpu_.stream()); }

  /// us of one, by the GPU's clock; and of the host's part.
  double timed(const std::function<void()>& queue, double& on_host) {
    const detail::cuda_driver& cu = gpu_.driver();
    gpu_.finish();
    cu.check(cu.event_record(events_[0], gpu_.stream()), "cuEventRecord");
    const auto start = bench_clock::now();
    for (int i = 0; i != repeats(); ++i) queue();
    on_host = us_since(start) / repeats();
    cu.check(cu.event_record(events_[1], gpu_.stream()), "cuEventRecord");
    gpu_.finish();
    float milliseconds = 0;
    cu.check(cu.event_elapsed(&milliseconds, events_[0], events_[1]), "cuEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds) / repeats();
  }

  /// Of a launch between two events. A stand-in is so slow that one is enough.
  [[nodiscard]] int repeats() const { return gpu_.stands_in() ? 1 : 10; }

  Gpu& gpu_;
  detail::cuda_copies& copies_;
  tensor_group what_;
  std::vector<std::size_t> tensor_at_, packed_at_;
  std::size_t tensors_bytes_ = 0, packed_bytes_ = 0, elements_ = 0;
  std::byte *tensors_ = nullptr, *packed_ = nullptr, *other_ = nullptr;
  std::vector<device_part> in_, half_, out_;
  std::array<detail::cu_event, 2> events_;
};

}  // namespace

int measure_pack(const gpu_settings& s) {
  const auto device = std::make_shared<detail::cuda_device>();
  detail::get_nccl();  // for the head of the table
  Gpu gpu(device);
  detail::cuda_copies copies(gpu.driver());
  print_gpu(gpu);
  std::printf("| tensors | what | us | GB/s, read and written | %% of the copy | host, us a launch |\n"
              "|---|---|--:|--:|--:|--:|\n");
  bool right = true;
  for (tensor_group& g : groups(gpu.stands_in())) right = packing(gpu, copies, std::move(g)).report(s.seconds) && right;
  return right ? 0 : 1;
}

}  // namespace hvd::bench
