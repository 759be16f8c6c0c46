// bench/cases/gradients.hpp: the gradients of real models, by name, and when a backward pass gives them.
#pragma once

#include <bench/job.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvd::bench {

/// One parameter tensor.
struct gradient {
  std::string name;
  std::vector<std::size_t> shape;
  std::size_t count;  ///< elements
  /// Of the work that a backward pass does between the gradient before and this one; all of a model are 1 together.
  double share;
};

/// In the order in which a backward pass finishes them: the last layer first. Names, shapes and order are those of
/// torchvision (resnet50) and of GPT-2 in Hugging Face's transformers (its head shares the weights of the embedding).
///
/// Shares come from floating-point operations for one image of 224 x 224, or one sequence of 1024 tokens. A layer with
/// weights takes as many multiplications and additions to find the gradient of its input as forwards, and as many again
/// for that of its weights: 4 for each multiply-add of the forward pass. (The first convolution needs no gradient of
/// its input, and an embedding adds up rows.) A normalisation takes 8 for each element; activations, additions of
/// branches and pooling count as nothing. That is arithmetic only: layers that wait for memory take longer.
/// Attention's two products of sequences with each other are added to the projection before them, and the head to the
/// last normalisation: the gradient of the weights that it shares is complete only with the embedding, at the very end.
/// The tensors of one layer come together: the first has its share, the others none.
std::vector<gradient> gradients_in(model m);

/// One backward pass of one rank: the gradients in its order, with times from the start in seconds.
struct backward_pass {
  struct arrival {
    std::size_t gradient;  ///< place in the list
    double seconds;
  };
  std::vector<arrival> arrivals;
  [[nodiscard]] double seconds() const { return arrivals.empty() ? 0 : arrivals.back().seconds; }
};

/// The pass of `rank` in `step`: equal arguments give equal passes, on all machines. It takes `backward_seconds` times
/// a factor that is even between 1 - jitter and 1 + jitter for the whole pass, and another such one for each tensor's
/// part of it. The next one is any of the first `window` remaining ones; 1 keeps the order.
backward_pass pass_of(const std::vector<gradient>& all, const replay& how, int rank, std::uint64_t step);

/// When all ranks have all their gradients.
double slowest_pass(const std::vector<gradient>& all, const replay& how, int ranks, std::uint64_t step);

}  // namespace hvd::bench
