// digits/mlp.hpp: a multi-layer perceptron with one hidden layer, whose weights are one contiguous vector.
#pragma once

#include "random.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace digits {

/// inputs -> hidden, tanh -> outputs, softmax. Only the shape is kept here; the weights are the caller's, in
/// one vector, and so are the gradients: what is contiguous is broadcast and reduced in one call.
struct mlp {
  Eigen::Index inputs;
  Eigen::Index hidden;
  Eigen::Index outputs;

  /// The results of the model on labelled images.
  struct score {
    double loss = 0;          ///< cross-entropy, summed over the images
    std::size_t correct = 0;  ///< images whose likeliest class is their label
  };

  /// Number of weights.
  [[nodiscard]] Eigen::Index size() const noexcept { return (inputs + 1) * hidden + (hidden + 1) * outputs; }

  /// Weights drawn from [-a, a) with a = sqrt(3 / inputs of the layer) (LeCun et al. 1998), biases 0.
  [[nodiscard]] Eigen::VectorXf initial_weights(std::uint64_t seed) const {
    std::mt19937_64 engine(seed);
    const auto draw = [&](auto& weights) {
      const float limit = std::sqrt(3.0f / static_cast<float>(weights.cols()));
      for (float& weight : weights.reshaped()) weight = uniform(engine, limit);
    };
    Eigen::VectorXf all = Eigen::VectorXf::Zero(size());
    layers<float> layer(*this, all.data());
    draw(layer.in);
    draw(layer.out);
    return all;
  }

  /// `images` has one image a column. `gradient` becomes the *sum* over the images of the gradients of their
  /// losses: the sums of ranks with unequal shares add up to the right thing, their averages would not. As soon as a
  /// part of it is computed, the last layer's first, `ready(name, part)` is called.
  score differentiate(const Eigen::VectorXf& weights, const Eigen::MatrixXf& images,
                      std::span<const std::uint8_t> labels, Eigen::VectorXf& gradient, auto&& ready) const {
    layers<float> slope(*this, gradient.data());
    const auto done = [&](const char* name, auto& part) {
      ready(name, std::span<float>(part.data(), static_cast<std::size_t>(part.size())));
    };
    if (labels.empty()) {
      gradient.setZero();
      done("output.weights", slope.out);
      done("output.bias", slope.out_bias);
      done("hidden.weights", slope.in);
      done("hidden.bias", slope.in_bias);
      return {};
    }
    const layers<const float> layer(*this, weights.data());
    const Eigen::MatrixXf activation = activate(layer, images);
    Eigen::MatrixXf delta = classify(layer, activation);
    const score result = rate(delta, labels);

    // For softmax with cross-entropy, the slope at the outputs is probability minus truth; then backwards.
    for (Eigen::Index i = 0; i < delta.cols(); ++i) delta(labels[static_cast<std::size_t>(i)], i) -= 1;
    slope.out.noalias() = delta * activation.transpose();
    done("output.weights", slope.out);
    slope.out_bias = delta.rowwise().sum();
    done("output.bias", slope.out_bias);
    const Eigen::MatrixXf hidden_delta = (1 - activation.array().square()) * (layer.out.transpose() * delta).array();
    slope.in.noalias() = hidden_delta * images.transpose();
    done("hidden.weights", slope.in);
    slope.in_bias = hidden_delta.rowwise().sum();
    done("hidden.bias", slope.in_bias);
    return result;
  }

  [[nodiscard]] score evaluate(const Eigen::VectorXf& weights, const Eigen::MatrixXf& images,
                               std::span<const std::uint8_t> labels) const {
    if (labels.empty()) return {};
    const layers<const float> layer(*this, weights.data());
    return rate(classify(layer, activate(layer, images)), labels);
  }

 private:
  // The parts of the one vector, as matrices.
  template <class Float>
  struct layers {
    template <class Plain>
    using part = Eigen::Map<std::conditional_t<std::is_const_v<Float>, const Plain, Plain>>;

    layers(const mlp& shape, Float* first)
        : in(first, shape.hidden, shape.inputs), in_bias(first + in.size(), shape.hidden),
          out(in_bias.data() + in_bias.size(), shape.outputs, shape.hidden),
          out_bias(out.data() + out.size(), shape.outputs) {}

    part<Eigen::MatrixXf> in;
    part<Eigen::VectorXf> in_bias;
    part<Eigen::MatrixXf> out;
    part<Eigen::VectorXf> out_bias;
  };

  // tanh and not max(x, 0): with the kink, the last bits of a sum, which depend on the number of ranks, can
  // switch a unit on or off, and after some hundred steps two runs differ visibly.
  static Eigen::MatrixXf activate(const layers<const float>& layer, const Eigen::MatrixXf& images) {
    return ((layer.in * images).colwise() + layer.in_bias).array().tanh();
  }

  // Probabilities of the classes, one column an image.
  static Eigen::MatrixXf classify(const layers<const float>& layer, const Eigen::MatrixXf& activation) {
    Eigen::MatrixXf result = (layer.out * activation).colwise() + layer.out_bias;
    result.rowwise() -= result.colwise().maxCoeff().eval();  // so that exp cannot overflow
    result = result.array().exp();
    result.array().rowwise() /= result.array().colwise().sum().eval();
    return result;
  }

  static score rate(const Eigen::MatrixXf& probabilities, std::span<const std::uint8_t> labels) {
    score result;
    for (Eigen::Index i = 0; i < probabilities.cols(); ++i) {
      const Eigen::Index label = labels[static_cast<std::size_t>(i)];
      Eigen::Index likeliest = 0;
      probabilities.col(i).maxCoeff(&likeliest);
      result.loss -= std::log(std::max(static_cast<double>(probabilities(label, i)), 1e-30));
      result.correct += likeliest == label ? 1 : 0;
    }
    return result;
  }
};

}  // namespace digits
