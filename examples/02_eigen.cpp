// 02_eigen.cpp: Eigen's vectors, matrices and maps are buffers. Here: mean and covariance of samples on several ranks.
#include <hvd/eigen.hpp>
#include <hvd/hvd.hpp>

#include <Eigen/Dense>

#include <exception>
#include <iostream>
#include <vector>

constexpr int features = 3, samples_each = 4;

/// This rank's samples, one in each column.
Eigen::MatrixXd samples_of(int rank) {
  Eigen::MatrixXd samples(features, samples_each);
  for (int i = 0; i != samples_each; ++i) {
    const int k = rank * samples_each + i;
    samples.col(i) << k, k % 2, 8 - k;
  }
  return samples;
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 2;
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    const Eigen::MatrixXd samples = samples_of(comm.rank());

    Eigen::Vector3d mean = samples.rowwise().mean();
    hvd::allreduce(comm, mean, hvd::average);

    const Eigen::MatrixXd centered = samples.colwise() - mean;
    Eigen::Matrix3d covariance = centered * centered.transpose() / samples_each;
    hvd::allreduce(comm, covariance, hvd::average);

    // Whole columns of a matrix are contiguous and can be passed as they are.
    Eigen::MatrixXd firsts(features, comm.size());
    hvd::allgather(comm, samples.col(0), firsts);

    // A row is not: `samples.row(1)` does not compile, its copy does.
    Eigen::RowVectorXd largest = samples.row(0);
    hvd::allreduce(comm, largest, hvd::max);

    // A map makes a matrix of memory that belongs to somebody else; rank 0 gives its values to all.
    std::vector<double> weights(6, comm.rank());
    Eigen::Map<Eigen::Matrix<double, 2, 3>> map(weights.data());
    if (comm.rank() == 0) map << 1, 2, 3, 4, 5, 6;
    hvd::broadcast(comm, map);

    if (comm.rank() == 0) {  // any rank would print the same
      std::cout << "mean:\n"
                << mean << "\ncovariance:\n"
                << covariance << "\nfirst sample of each rank:\n"
                << firsts << "\nlargest: " << largest << "\nweights:\n"
                << map << "\n";
    }
  });
} catch (const std::exception& e) {
  std::cerr << e.what() << "\n";
  return 2;
}
