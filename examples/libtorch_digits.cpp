// A convolutional network of libtorch learns handwritten digits, data-parallel. However many ranks share the images of
// a step, the losses are those of one rank, but for rounding; and all ranks end with the same weights, bit for bit.
//
//   TORCH=$(python -c "import torch; print(torch.__path__[0])")
//   g++ -std=c++20 -O2 -I include -isystem $TORCH/include -isystem $TORCH/include/torch/csrc/api/include
//     examples/libtorch_digits.cpp -o libtorch_digits -L $TORCH/lib -Wl,-rpath,$TORCH/lib -ltorch -ltorch_cpu -lc10
//   hvdrun -np 2 ./libtorch_digits examples/data/digits.csv 3
//
// Without a launcher it runs alone. It must not fork: libtorch has threads, which a child would not have.
#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/engine.hpp>
#include <hvd/fusion.hpp>
#include <hvd/torch.hpp>
#include <hvd/transport/shm.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t images_a_step = 64;  // of all ranks together

struct dataset {
  torch::Tensor images, labels;
};

// 8 x 8 pixels from 0 to 16 and the digit on each line, after one of text.
dataset read(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream values(line);
    std::array<float, 65> row{};
    for (float& value : row) {
      values >> value;
      values.ignore();
    }
    pixels.insert(pixels.end(), row.begin(), row.end() - 1);
    labels.push_back(static_cast<std::int64_t>(row.back()));
  }
  if (labels.empty()) throw std::runtime_error("no images in " + path);
  return {torch::tensor(pixels).view({-1, 1, 8, 8}) / 16, torch::tensor(labels)};
}

std::uint64_t hash_of(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const torch::Tensor& t : tensors) {
    const auto* const bytes = static_cast<const unsigned char*>(t.const_data_ptr());
    for (std::size_t i = 0; i != t.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

void train(hvd::ShmTransport& comm, const dataset& data, int epochs) {
  const std::int64_t rank = comm.rank(), ranks = comm.size(), images = data.labels.size(0);

  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)), torch::nn::ReLU(),
                              torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(16 * 4 * 4, 10));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  hvd::broadcast(comm, hvd::tensors(model->parameters()));  // all begin with what rank 0 drew

  hvd::Engine engine(comm);
  hvd::DistributedGradients gradients(engine, model->named_parameters());
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    std::array<double, 1> sum{};
    for (std::int64_t begin = 0; begin < images; begin += images_a_step) {
      // This rank's part of the step. All parts are the step, also where they differ in length.
      const std::int64_t count = std::min(images_a_step, images - begin);
      const torch::indexing::Slice mine(begin + count * rank / ranks, begin + count * (rank + 1) / ranks);
      gradients.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(model->forward(data.images.index({mine})), data.labels.index({mine}),
                                               torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      // Averaged over the ranks this is the gradient of the mean loss of the step's images.
      (loss * (static_cast<double>(ranks) / static_cast<double>(count))).backward();
      gradients.synchronize();
      optimizer.step();
      sum[0] += loss.item<double>();
    }
    hvd::allreduce(comm, sum);
    if (rank == 0) std::printf("epoch %d  loss %.6f\n", epoch, sum[0] / static_cast<double>(images));
  }

  const std::array<std::uint64_t, 1> hash{hash_of(model->parameters())};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks));
  hvd::allgather(comm, hash, all);
  for (const std::uint64_t other : all) {
    if (other != all[0]) throw std::runtime_error("the ranks have different weights");
  }
  if (rank == 0) {
    std::printf("weights %016llx on %lld rank%s\n", static_cast<unsigned long long>(hash[0]),
                static_cast<long long>(ranks), ranks == 1 ? "" : "s");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);  // each rank is a process of this host: more threads would fight for the same cores
    torch::manual_seed(1);
    hvd::ShmTransport comm = hvd::ShmTransport::from_environment();
    const int epochs = argc > 2 ? std::atoi(argv[2]) : 3;
    train(comm, read(argc > 1 ? argv[1] : "examples/data/digits.csv"), epochs);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "libtorch_digits: %s\n", e.what());
    return 1;
  }
}
