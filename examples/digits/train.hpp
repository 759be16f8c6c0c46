// digits/train.hpp: data-parallel training, from the first weights to the accuracy on the test images.
#pragma once

#include "checkpoint.hpp"
#include "dataset.hpp"
#include "file.hpp"
#include "mlp.hpp"
#include "options.hpp"
#include "parallel.hpp"
#include "progress.hpp"
#include "random.hpp"

#include <hvd/allreduce.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/eigen.hpp>
#include <hvd/engine.hpp>
#include <hvd/op.hpp>
#include <hvd/pin.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/nccl.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace digits {

/// Some images as the model takes them: one a column, pixels from 0 to 1.
struct batch {
  Eigen::MatrixXf images;
  std::vector<std::uint8_t> labels;

  batch(const labelled_images& from, std::span<const std::size_t> which)
      : images(static_cast<Eigen::Index>(from.pixels_per_image), static_cast<Eigen::Index>(which.size())) {
    using bytes = Eigen::Vector<std::uint8_t, Eigen::Dynamic>;
    Eigen::Index column = 0;
    for (const std::size_t i : which) {
      const Eigen::Map<const bytes> pixels(from.image(i).data(), images.rows());
      images.col(column++) = pixels.cast<float>() / static_cast<float>(from.white);
      labels.push_back(from.labels[i]);
    }
  }
};

/// Every rank goes on from what rank 0 has.
void broadcast_state(hvd::Transport auto& comm, training_state& state) {
  std::array<std::uint64_t, 2> numbers{state.seed, state.epochs};
  hvd::broadcast(comm, numbers);
  state.seed = numbers[0];
  state.epochs = numbers[1];
  hvd::broadcast(comm, state.weights);
  hvd::broadcast(comm, state.velocity);
}

/// How the weights follow from the gradients. The same on all ranks.
struct step_policy {
  std::uint64_t global_batch;
  float learning_rate;
  float momentum;
  float decay;  ///< pulls the weights towards 0, so that they generalise
  bool check_bits;
};

/// Totals of an epoch; of one rank, or of all of them together.
struct epoch_totals {
  double loss = 0;           ///< summed over the images
  double seconds = 0;        ///< spent in steps
  double communicating = 0;  ///< of these, waiting for sums over all ranks, and so for slower ranks
};

/// Adds what f takes to `seconds`.
void timed(double& seconds, auto f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Sums the gradients of all ranks when the backward pass is over: they are one vector, so one call does it.
template <hvd::Transport T>
struct sum_at_the_end {
  T& comm;

  void ready(const char* /*name*/, std::span<float> /*part*/) {}
  void finish(Eigen::VectorXf& gradient) { hvd::allreduce(comm, gradient); }
};

/// Sums each part as soon as it is computed, by name, while the backward pass goes on with the layer before.
template <hvd::Transport T>
class sum_as_they_come {
 public:
  explicit sum_as_they_come(T& comm) : engine_(comm) {}

  void ready(const char* name, std::span<float> part) { in_flight_.push_back(engine_.allreduce(name, part)); }
  void finish(Eigen::VectorXf& /*gradient*/) {
    for (const hvd::handle& h : in_flight_) h.wait();
    in_flight_.clear();
  }

 private:
  hvd::Engine<T> engine_;
  std::vector<hvd::handle> in_flight_;
};

/// Sums the gradients on the ranks' GPUs. The network is computed on the host, so that this program needs neither
/// CUDA's compiler nor a GPU to be built.
template <hvd::Bootstrap T>
class sum_on_gpus {
 public:
  explicit sum_on_gpus(T& comm) : pinned_(hvd::pin(comm)), gpu_(comm) {}

  void ready(const char* /*name*/, std::span<float> /*part*/) {}
  void finish(Eigen::VectorXf& gradient) {
    const auto length = static_cast<std::size_t>(gradient.size());
    if (sum_.empty()) sum_ = gpu_.template alloc_shared<float>(length);
    const std::span<float> all(gradient.data(), length);
    gpu_.template copy_to_device<float>(all, sum_.data());
    hvd::allreduce(gpu_, sum_);
    gpu_.template copy_to_host<float>(sum_.data(), all);
  }

 private:
  hvd::PinGuard pinned_;
  hvd::NcclTransport gpu_;
  hvd::shared_array<float> sum_;
};

epoch_totals train_epoch(hvd::Transport auto& comm, auto& gradients, const mlp& model, const labelled_images& images,
                         const step_policy& policy, training_state& state, progress_display& progress) {
  epoch_totals mine;
  Eigen::VectorXf gradient(model.size());
  // A new order every epoch, the same on all ranks: which images make a step depends on no rank.
  const std::vector<std::size_t> order = shuffled(images.size(), state.order_seed());
  for (std::uint64_t begin = 0; begin < order.size(); begin += policy.global_batch) {
    // The last step of an epoch takes what remains.
    const std::span step = std::span(order).subspan(begin, std::min(policy.global_batch, order.size() - begin));
    timed(mine.seconds, [&] {
      // Shard: each rank takes its part of the step's images and computes the sum of their gradients.
      const batch share(images, shard(comm, step));
      const auto ready = [&](const char* name, std::span<float> part) { gradients.ready(name, part); };
      mine.loss += model.differentiate(state.weights, share.images, share.labels, gradient, ready).loss;
      // Average: the sum over all ranks by the images of the whole step; right for unequal shards, too.
      timed(mine.communicating, [&] { gradients.finish(gradient); });
      gradient /= static_cast<float>(step.size());
      // Update: from the same bits with the same arithmetic, so the weights need not be sent again.
      state.velocity = policy.momentum * state.velocity + gradient + policy.decay * state.weights;
      state.weights -= policy.learning_rate * state.velocity;
    });
    if (policy.check_bits) {
      check_same_bits(comm, state.weights,
                      "epoch " + std::to_string(state.epochs + 1) + ", step " +
                          std::to_string(begin / policy.global_batch + 1));
    }
    progress.step();
  }
  ++state.epochs;

  // One small collective an epoch for everything that is reported.
  std::array sums{mine.loss, mine.seconds, mine.communicating};
  hvd::allreduce(comm, sums);
  return {sums[0], sums[1], sums[2]};
}

/// Evaluate: each rank tries its shard of the images, and the counts are added.
std::uint64_t count_correct(hvd::Transport auto& comm, const mlp& model, const Eigen::VectorXf& weights,
                            const labelled_images& images) {
  std::vector<std::size_t> all(images.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const batch share(images, shard(comm, std::span<const std::size_t>(all)));
  std::array<std::uint64_t, 1> correct{model.evaluate(weights, share.images, share.labels).correct};
  hvd::allreduce(comm, correct, hvd::sum);
  return correct[0];
}

/// Trains as `wanted` says, with `gradients` summed over the ranks; rank 0 reports. Throws std::runtime_error or
/// hvd::error; what is wrong with a file is thrown on every rank.
void train(hvd::Transport auto& comm, auto& gradients, const options& wanted) {
  const dataset data = wanted.mnist.empty() ? read_digits(wanted.data) : read_mnist(wanted.mnist);
  const mlp model{static_cast<Eigen::Index>(data.train.pixels_per_image), 64, classes};
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  const auto rank = static_cast<std::uint64_t>(comm.rank());

  // Broadcast: every rank draws first weights of its own, and rank 0, which may be the only one that sees the
  // file, reads the checkpoint. Then all go on from what rank 0 has.
  training_state state{.seed = wanted.seed,
                       .epochs = 0,
                       .weights = model.initial_weights(wanted.seed + rank),
                       .velocity = Eigen::VectorXf::Zero(model.size())};
  if (!wanted.resume.empty()) on_rank_0(comm, [&] { state = read_checkpoint(wanted.resume, model); });
  broadcast_state(comm, state);

  // Scale: where every rank adds a batch of its own, a step has more images and less noise, and a learning
  // rate as many times larger does the work of as many steps (Goyal et al. 2017). A batch that is fixed for
  // all ranks together keeps its rate.
  const std::uint64_t scale = wanted.batch_is_global ? 1 : ranks;
  const step_policy policy{.global_batch = wanted.batch * scale,
                           .learning_rate = wanted.learning_rate * static_cast<float>(scale),
                           .momentum = 0.9f,
                           .decay = 3e-4f,
                           .check_bits = wanted.check_bits};

  std::ofstream losses;
  if (!wanted.loss_file.empty()) {
    on_rank_0(comm, [&] {
      losses.open(wanted.loss_file);
      if (!losses) fail_system(wanted.loss_file, "cannot be opened for writing");
    });
  }

  const std::size_t images = data.train.size();
  const std::uint64_t steps = (images + policy.global_batch - 1) / policy.global_batch;
  progress_display progress(rank == 0, steps * (wanted.epochs - std::min(wanted.epochs, state.epochs)));
  progress.line("%d %s, %td-%td-%td perceptron with %td weights, %zu images and %zu to test", comm.size(),
                ranks == 1 ? "rank" : "ranks", model.inputs, model.hidden, model.outputs, model.size(), images,
                data.test.size());
  progress.line("%" PRIu64 " images a step, learning rate %g", policy.global_batch,
                static_cast<double>(policy.learning_rate));

  while (state.epochs < wanted.epochs) {
    const epoch_totals epoch = train_epoch(comm, gradients, model, data.train, policy, state, progress);
    const double loss = epoch.loss / static_cast<double>(images);
    const double wall = epoch.seconds / static_cast<double>(ranks);
    progress.line("epoch %2" PRIu64 "  loss %.5f  %7.0f images/s  communicating %4.1f %%", state.epochs, loss,
                  static_cast<double>(images) / wall, 100 * epoch.communicating / epoch.seconds);

    // Checkpoint: all ranks hold the same, so one writes it; several would write over each other.
    if (!wanted.checkpoint.empty()) on_rank_0(comm, [&] { write_checkpoint(wanted.checkpoint, model, state); });
    if (!wanted.loss_file.empty()) {
      on_rank_0(comm, [&] {
        losses << state.epochs << ' ' << std::setprecision(9) << loss << std::endl;
        if (!losses) fail_system(wanted.loss_file, "cannot be written");
      });
    }
  }

  const std::uint64_t correct = count_correct(comm, model, state.weights, data.test);
  progress.line("test accuracy %.2f %% (%" PRIu64 " of %zu images)",
                100 * static_cast<double>(correct) / static_cast<double>(data.test.size()), correct, data.test.size());
}

/// The same, summed as the options say.
template <hvd::Transport T>
void train(T& comm, const options& wanted) {
  if (wanted.cuda) {
    sum_on_gpus<T> gradients(comm);
    train(comm, gradients, wanted);
  } else if (wanted.engine) {
    sum_as_they_come<T> gradients(comm);
    train(comm, gradients, wanted);
  } else {
    sum_at_the_end<T> gradients{comm};
    train(comm, gradients, wanted);
  }
}

}  // namespace digits
