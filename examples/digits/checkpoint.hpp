// digits/checkpoint.hpp: what a run needs to go on where another one stopped, in memory and in a file.
#pragma once

#include "mlp.hpp"

#include <Eigen/Core>

#include <cstdint>
#include <string>

namespace digits {

/// All that changes from step to step, and the seed.
struct training_state {
  std::uint64_t seed = 0;
  std::uint64_t epochs = 0;  ///< already trained
  Eigen::VectorXf weights;
  Eigen::VectorXf velocity;  ///< the decaying sum of gradients that momentum keeps

  /// For the order of the images in the next epoch; mixed, so that neither epochs nor seeds share an order.
  [[nodiscard]] std::uint64_t order_seed() const noexcept { return seed ^ ((epochs + 1) * 0x9e3779b97f4a7c15u); }
};

/// Writes a file that is either the old one or complete, whenever the process or the machine stops.
/// Throws std::runtime_error naming the file.
void write_checkpoint(const std::string& path, const mlp& model, const training_state& state);

/// Throws std::runtime_error naming file and byte offset if this is not an intact checkpoint of such a model.
training_state read_checkpoint(const std::string& path, const mlp& model);

}  // namespace digits
