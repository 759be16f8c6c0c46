// 06_shared_buffers.cpp: zero copy. Memory from alloc_shared can be seen by all ranks of the group: a collective reads
// every input where it was computed and writes every output where it is wanted, and needs no memory of its own.
#include <hvd/hvd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

constexpr std::size_t layer_sizes[] = {60000, 20000, 10};

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 2;
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    std::size_t total = 0;
    for (const std::size_t n : layer_sizes) total += n;

    // Collective, and takes time: once, before training. Elements are zero at first. Every rank has a part of its own.
    hvd::shared_array<float> gradients = comm.alloc_shared<float>(total);

    // The layers' gradients follow one another, so that one allreduce does for all of them, with nothing to pack.
    std::vector<std::span<float>> layers;
    for (std::size_t at = 0; const std::size_t n : layer_sizes) {
      layers.emplace_back(gradients.data() + at, n);
      at += n;
    }
    for (std::size_t k = 0; k != layers.size(); ++k) {
      std::ranges::fill(layers[k], static_cast<float>(comm.rank()) + 10.0f * static_cast<float>(k));  // "backward"
    }
    hvd::allreduce(comm, gradients, hvd::average);

    // Any piece of it is as good, and input and output may be two pieces.
    hvd::shared_array<float> sums = comm.alloc_shared<float>(layer_sizes[1]);
    hvd::allreduce(comm, layers[1], sums);

    // Private memory gives the same bits; it is only copied on its way.
    std::vector<float> input(layers[1].begin(), layers[1].end()), output(layer_sizes[1]);
    hvd::allreduce(comm, input, output);
    const bool same = std::ranges::equal(sums, output);

    if (comm.rank() == 0) {
      for (const std::span<float> layer : layers) std::printf("%zu gradients, average %g\n", layer.size(), layer[0]);
      std::printf("shared and private memory: %s\n", same ? "the same" : "different");
    }
    // Each rank frees its part when the array goes out of scope. Nobody may use it in a collective after that.
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
