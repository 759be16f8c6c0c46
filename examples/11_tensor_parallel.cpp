// 11_tensor_parallel.cpp: inference with a transformer block that is split over the ranks as in Megatron-LM (M. Shoeybi
// et al., 2019). Each rank holds some of the heads and some columns of the MLP, with their weights and their part of
// the key/value cache, and computes a partial result from them. Two allreduces of bfloat16 activations make the block
// whole: one after the attention, one after the MLP. The program reads a prompt at once, then chooses tokens one by
// one, and compares them with those of one rank that holds all weights and computes in float. To build it:
// g++ -std=c++20 -O2 -I include examples/11_tensor_parallel.cpp -o tensor_parallel -pthread
#include <hvd/hvd.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <span>
#include <vector>

using std::size_t;
using vector = std::vector<float>;

constexpr size_t hidden = 256, heads = 8, head_size = hidden / heads, mlp_columns = 704, vocabulary = 64;
constexpr size_t prompt[] = {60, 33, 53, 16, 31, 27, 10, 4, 15, 38}, new_tokens = 8;

enum class weights { token, position, query, key, value, output, gate, up, down, logits };

/// One weight, from -1 to 1: the same on every machine, and a function of its row and column, so that a rank makes only
/// those that it holds. A real program reads them from a file.
float weight(weights which, size_t row, size_t column) {
  auto x = static_cast<std::uint64_t>(which) << 40 | std::uint64_t{row} << 20 | std::uint64_t{column};
  for (int step = 0; step != 3; ++step) {
    x = x * 6364136223846793005u + 1442695040888963407u;  // the linear congruential generator of MMIX (D. Knuth)
    x ^= x >> 32;
  }
  return static_cast<float>(static_cast<std::int32_t>(x >> 40) - (1 << 23)) * 0x1p-23f;
}

/// Some outputs or inputs of a layer, or all.
struct part {
  size_t first, count;
};
constexpr part all(size_t n) { return {0, n}; }

/// The rank's part of n heads or columns, in units of `width`. Ranks may have different numbers of them, or none.
template <class Comm>
part mine(const Comm& comm, size_t n, size_t width = 1) {
  const size_t rank = static_cast<size_t>(comm.rank()), size = static_cast<size_t>(comm.size());
  const size_t first = n * rank / size, end = n * (rank + 1) / size;
  return {first * width, (end - first) * width};
}

/// A linear layer, or the part of one that a rank holds: some of its outputs (column-parallel, as Megatron-LM calls it)
/// or some of its inputs (row-parallel).
class linear {
 public:
  linear(weights which, part outputs, part inputs, size_t all_inputs) : outputs_(outputs.count), inputs_(inputs.count) {
    const float scale = std::sqrt(6.0f / static_cast<float>(all_inputs));
    for (size_t o = 0; o != outputs_; ++o) {
      for (size_t i = 0; i != inputs_; ++i) {
        weights_.push_back(scale * weight(which, outputs.first + o, inputs.first + i));
      }
    }
  }
  vector operator()(const vector& x) const {
    vector y(outputs_);
    for (size_t o = 0; o != outputs_; ++o) {
      for (size_t i = 0; i != inputs_; ++i) y[o] += weights_[o * inputs_ + i] * x[i];
    }
    return y;
  }

 private:
  size_t outputs_, inputs_;
  vector weights_;
};

/// Root mean square norm, without a gain.
vector norm(std::span<const float> x) {
  float squares = 0.0f;
  for (const float v : x) squares += v * v;
  vector y(x.begin(), x.end());
  for (float& v : y) v /= std::sqrt(squares / static_cast<float>(x.size()) + 1e-5f);
  return y;
}

/// A rank's part of a transformer block, on any transport. Partial results are summed as `Activation`.
template <class Activation, class Comm>
class block {
 public:
  explicit block(Comm& comm) : comm_(comm) {}

  /// x has `hidden` numbers for each new token, the same on all ranks, before and after.
  void operator()(vector& x) {
    add_sum(x, [&](const vector& token) { return attention(token); });
    add_sum(x, [&](const vector& token) { return mlp(token); });
  }

 private:
  /// Adds to each token what all ranks together compute from it.
  template <class Layer>
  void add_sum(vector& x, const Layer& layer) {
    for (size_t at = 0; at != x.size(); at += hidden) {
      const vector partial = layer(norm(std::span(x).subspan(at, hidden)));
      for (size_t i = 0; i != hidden; ++i) shared_[at + i] = static_cast<Activation>(partial[i]);
    }
    // The sum is computed in float and rounded once. From 4 KiB on, as for the prompt, ranks read each other's partial
    // results where they lie. Fewer bytes, as for one token, take a single step through memory of the transport.
    const std::span<Activation> sum(shared_.data(), x.size());
    hvd::allreduce(comm_, sum);
    for (size_t i = 0; i != x.size(); ++i) x[i] += static_cast<float>(sum[i]);
  }

  /// Heads do not depend on each other: a rank needs nothing of the others up to the output layer.
  vector attention(const vector& x) {
    const vector query = query_(x), key = key_(x), value = value_(x);
    keys_.insert(keys_.end(), key.begin(), key.end());
    values_.insert(values_.end(), value.begin(), value.end());
    ++tokens_;  // a token sees itself and all before it
    const size_t width = own_heads_.count;
    vector mixed(width), score(tokens_);
    for (size_t head = 0; head != width; head += head_size) {
      for (size_t t = 0; t != tokens_; ++t) {
        float product = 0.0f;
        for (size_t i = head; i != head + head_size; ++i) product += query[i] * keys_[t * width + i];
        score[t] = product / std::sqrt(static_cast<float>(head_size));
      }
      const float largest = std::ranges::max(score);
      float total = 0.0f;
      for (float& s : score) {
        s = std::exp(s - largest);
        total += s;
      }
      for (size_t t = 0; t != tokens_; ++t) {
        for (size_t i = head; i != head + head_size; ++i) mixed[i] += score[t] / total * values_[t * width + i];
      }
    }
    return output_(mixed);
  }

  /// With a gate (SiLU). A rank holds the same columns of both layers, so it can multiply them.
  vector mlp(const vector& x) const {
    const vector gate = gate_(x);
    vector inner = up_(x);
    for (size_t i = 0; i != inner.size(); ++i) inner[i] *= gate[i] / (1.0f + std::exp(-gate[i]));
    return down_(inner);
  }

  Comm& comm_;
  part own_heads_ = mine(comm_, heads, head_size), own_columns_ = mine(comm_, mlp_columns);
  linear query_{weights::query, own_heads_, all(hidden), hidden};
  linear key_{weights::key, own_heads_, all(hidden), hidden};
  linear value_{weights::value, own_heads_, all(hidden), hidden};
  linear output_{weights::output, all(hidden), own_heads_, hidden};
  linear gate_{weights::gate, own_columns_, all(hidden), hidden};
  linear up_{weights::up, own_columns_, all(hidden), hidden};
  linear down_{weights::down, all(hidden), own_columns_, mlp_columns};
  size_t tokens_ = 0;
  vector keys_, values_;  // the cache: for each token those of the own heads
  // Memory that all ranks reach, for the most tokens that come at once. Collective, and takes time: once, at the start.
  hvd::shared_array<Activation> shared_ = comm_.template alloc_shared<Activation>(std::size(prompt) * hidden);
};

struct text {
  std::vector<size_t> tokens;
  vector logits;          // of all tokens, one after the other
  float lead = INFINITY;  // by how much a chosen token is better than the next best, at least
};

/// Reads the prompt, then chooses tokens. A sum has the same bits on all ranks, so all choose the same tokens and need
/// no message for it.
template <class Activation, class Comm>
text generate(Comm& comm) {
  block<Activation, Comm> layer(comm);
  const linear output(weights::logits, all(vocabulary), all(hidden), hidden);  // small: whole on every rank
  text result;
  std::vector<size_t> next(std::begin(prompt), std::end(prompt));
  for (size_t position = 0; result.tokens.size() != new_tokens;) {
    vector x;
    for (const size_t token : next) {
      for (size_t i = 0; i != hidden; ++i) {
        x.push_back(weight(weights::token, token, i) + 0.5f * weight(weights::position, position, i));
      }
      ++position;
    }
    layer(x);
    vector logits = output(norm(std::span(x).last(hidden)));
    result.logits.insert(result.logits.end(), logits.begin(), logits.end());
    next = {static_cast<size_t>(std::ranges::max_element(logits) - logits.begin())};
    result.tokens.push_back(next[0]);
    std::ranges::partial_sort(logits, logits.begin() + 2, std::greater());
    result.lead = std::min(result.lead, logits[0] - logits[1]);
  }
  return result;
}

void print(const char* what, std::span<const size_t> tokens) {
  std::printf("%s", what);
  for (const size_t token : tokens) std::printf(" %zu", token);
  std::printf("\n");
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 2;
  hvd::SelfTransport one_rank;
  const text whole = generate<float>(one_rank);
  print("prompt:         ", prompt);
  print("whole, float:   ", whole.tokens);

  return hvd::fork_run(ranks, [&](hvd::ShmTransport& comm) {
    const text split = generate<hvd::bfloat16>(comm);
    float difference = 0.0f;
    for (size_t i = 0; i != whole.logits.size(); ++i) {
      difference = std::max(difference, std::abs(split.logits[i] - whole.logits[i]));
    }
    if (comm.rank() == 0) {
      print("split, bfloat16:", split.tokens);
      // Rounding changes the logits by far less than it takes to change a choice.
      std::printf("each token leads by more than 0.5: %s\n", whole.lead > 0.5f ? "yes" : "no");
      std::printf("logits differ by less than 0.05: %s\n", difference < 0.05f ? "yes" : "no");
    }
    return split.tokens == whole.tokens && difference < 0.05f ? 0 : 1;  // on every rank
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
