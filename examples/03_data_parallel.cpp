// 03_data_parallel.cpp: training on several ranks, each with its part of the data. Here: linear regression.
// All ranks have the same model and take the same steps, so they end with what one rank with all data would have found.
#include <hvd/eigen.hpp>
#include <hvd/hvd.hpp>

#include <Eigen/Dense>

#include <cmath>
#include <cstdio>
#include <exception>

constexpr int samples = 120, features = 3, steps = 200;
constexpr double learning_rate = 0.5;

/// Inputs of sample i, the last of which is 1 for the constant term, and what the model should say.
Eigen::Vector3d input(int i) { return {std::sin(i), std::cos(3 * i), 1.0}; }
double target(int i) { return Eigen::Vector3d(2.0, -1.0, 0.5).dot(input(i)) + 0.1 * std::sin(7 * i); }

/// Runs on any transport: a rank takes every size()-th sample.
template <class Comm>
Eigen::Vector3d train(Comm& comm) {
  const int mine = (samples - comm.rank() + comm.size() - 1) / comm.size();
  Eigen::MatrixXd inputs(mine, features);
  Eigen::VectorXd targets(mine);
  for (int k = 0; k != mine; ++k) {
    const int i = comm.rank() + k * comm.size();
    inputs.row(k) = input(i).transpose();
    targets[k] = target(i);
  }

  Eigen::Vector3d weights;
  if (comm.rank() == 0) weights << 0.1, 0.2, 0.3;
  hvd::broadcast(comm, weights);  // all ranks start with the same model

  for (int step = 0; step != steps; ++step) {
    // The sum over all ranks divided by all samples, and not hvd::average: parts may differ in size.
    Eigen::Vector3d gradient = inputs.transpose() * (inputs * weights - targets) / samples;
    hvd::allreduce(comm, gradient);
    weights -= learning_rate * gradient;
  }
  return weights;
}

int main(int argc, char** argv) try {
  hvd::SelfTransport one_rank;
  const Eigen::Vector3d alone = train(one_rank);
  std::printf("one rank:      %.6f %.6f %.6f\n", alone[0], alone[1], alone[2]);

  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 4;
  return hvd::fork_run(ranks, [&](hvd::ShmTransport& comm) {
    const Eigen::Vector3d together = train(comm);
    // Sums in another order differ in the last bits.
    const bool same = (together - alone).norm() < 1e-12;
    if (comm.rank() == 0) std::printf("several ranks: %.6f %.6f %.6f\n", together[0], together[1], together[2]);
    return same ? 0 : 1;
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
