// bench/cases/gradients.cpp: ResNet-50 and GPT-2, layer by layer.
#include <bench/cases/gradients.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace hvd::bench {
namespace {

/// Collects layers from the first to the last, each with the floating-point operations of its backward pass.
class network {
 public:
  struct tensor {
    std::string name;
    std::vector<std::size_t> shape;
  };
  void layer(double flops, std::vector<tensor> parameters) {
    // Reversed as a whole at the end, so the share stands with the layer's last tensor.
    for (tensor& t : parameters) {
      const std::size_t count = std::accumulate(t.shape.begin(), t.shape.end(), std::size_t{1}, std::multiplies<>());
      all_.push_back({std::move(t.name), std::move(t.shape), count, 0});
    }
    all_.back().share = flops;
  }
  [[nodiscard]] std::vector<gradient> backward() && {
    std::reverse(all_.begin(), all_.end());
    double sum = 0;
    for (const gradient& g : all_) sum += g.share;
    for (gradient& g : all_) g.share /= sum;
    return std::move(all_);
  }

 private:
  std::vector<gradient> all_;
};

double product(std::initializer_list<std::size_t> factors) {
  double all = 1;
  for (const std::size_t f : factors) all *= static_cast<double>(f);
  return all;
}

/// K. He et al., "Deep residual learning for image recognition", 2016, as torchvision has it: the 3 x 3 convolution of
/// a block has the stride.
std::vector<gradient> resnet50() {
  network net;
  // `side` of the output.
  const auto convolution = [&](const std::string& conv, const std::string& norm, std::size_t in, std::size_t out,
                               std::size_t kernel, std::size_t side, double work = 4) {
    net.layer(work * product({in, out, kernel, kernel, side, side}), {{conv + ".weight", {out, in, kernel, kernel}}});
    net.layer(8 * product({out, side, side}), {{norm + ".weight", {out}}, {norm + ".bias", {out}}});
  };
  convolution("conv1", "bn1", 3, 64, 7, 112, 2);
  std::size_t in = 64, side = 56;
  constexpr struct {
    std::size_t width, blocks;
  } stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (std::size_t s = 0; s != std::size(stages); ++s) {
    const auto [width, blocks] = stages[s];
    for (std::size_t b = 0; b != blocks; ++b) {
      const std::string block = "layer" + std::to_string(s + 1) + "." + std::to_string(b) + ".";
      const std::size_t before = side;
      if (s != 0 && b == 0) side /= 2;
      convolution(block + "conv1", block + "bn1", in, width, 1, before);
      convolution(block + "conv2", block + "bn2", width, width, 3, side);
      convolution(block + "conv3", block + "bn3", width, 4 * width, 1, side);
      if (b == 0) convolution(block + "downsample.0", block + "downsample.1", in, 4 * width, 1, side);
      in = 4 * width;
    }
  }
  net.layer(4 * product({in, 1000}), {{"fc.weight", {1000, in}}, {"fc.bias", {1000}}});
  return std::move(net).backward();
}

/// A. Radford et al., "Language models are unsupervised multitask learners", 2019: the small model.
std::vector<gradient> transformer124m() {
  constexpr std::size_t d = 768, words = 50257, positions = 1024, layers = 12;
  network net;
  const auto norm = [&](const std::string& name, double more = 0) {
    net.layer(8 * product({positions, d}) + more, {{name + ".weight", {d}}, {name + ".bias", {d}}});
  };
  const auto projection = [&](const std::string& name, std::size_t in, std::size_t out, double more = 0) {
    net.layer(4 * product({positions, in, out}) + more, {{name + ".weight", {in, out}}, {name + ".bias", {out}}});
  };
  net.layer(product({positions, d}), {{"transformer.wte.weight", {words, d}}});
  net.layer(product({positions, d}), {{"transformer.wpe.weight", {positions, d}}});
  for (std::size_t l = 0; l != layers; ++l) {
    const std::string block = "transformer.h." + std::to_string(l) + ".";
    norm(block + "ln_1");
    projection(block + "attn.c_attn", d, 3 * d, 2 * 4 * product({positions, positions, d}));
    projection(block + "attn.c_proj", d, d);
    norm(block + "ln_2");
    projection(block + "mlp.c_fc", d, 4 * d);
    projection(block + "mlp.c_proj", 4 * d, d);
  }
  norm("transformer.ln_f", 4 * product({positions, d, words}));
  return std::move(net).backward();
}

/// splitmix64 (G. Steele, D. Lea and C. Flood, 2014): a few numbers that depend on nothing but the seed.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Between 1 - spread and 1 + spread.
  double factor(double spread) { return 1 + spread * (static_cast<double>(next() >> 11) / 0x1p52 - 1); }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<gradient> gradients_in(model m) { return m == model::resnet50 ? resnet50() : transformer124m(); }

backward_pass pass_of(const std::vector<gradient>& all, const replay& how, int rank, std::uint64_t step) {
  numbers random(how.seed);
  numbers own(random.next() ^ (static_cast<std::uint64_t>(rank) << 32) ^ step);
  own.next();
  const double total = how.backward_seconds * own.factor(how.jitter);
  backward_pass pass;
  std::vector<std::size_t> waiting;
  std::size_t entered = 0;
  double now = 0;
  while (pass.arrivals.size() != all.size()) {
    while (entered != all.size() && waiting.size() < how.window) waiting.push_back(entered++);
    now += total * all[pass.arrivals.size()].share * own.factor(how.jitter);
    const auto which = static_cast<std::ptrdiff_t>(own.next() % waiting.size());
    pass.arrivals.push_back({waiting[static_cast<std::size_t>(which)], now});
    waiting.erase(waiting.begin() + which);
  }
  return pass;
}

double slowest_pass(const std::vector<gradient>& all, const replay& how, int ranks, std::uint64_t step) {
  double most = 0;
  for (int r = 0; r != ranks; ++r) most = std::max(most, pass_of(all, how, r, step).seconds());
  return most;
}

}  // namespace hvd::bench
