// digits/main_mpi.cpp: the same training as main.cpp where mpiexec starts the ranks, on one host or on many.
#include "options.hpp"
#include "train.hpp"

#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string_view>

namespace {

/// HVD_TRANSPORT says over what: hierarchical (shared memory on each host, MPI between hosts; the default), mpi, or shm
/// (all ranks on one host, MPI only brings them together).
void run(const digits::options& wanted) {
  const char* const given = std::getenv("HVD_TRANSPORT");
  const std::string_view transport = given != nullptr ? given : "hierarchical";
  // The engine works beside this thread.
  auto options = hvd::mpi_options::from_environment();
  options.thread_level = wanted.engine ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  hvd::MpiTransport world(MPI_COMM_WORLD, options);
  if (transport == "mpi") {
    digits::train(world, wanted);
  } else if (transport == "shm") {
    hvd::ShmTransport comm(world);
    digits::train(comm, wanted);
  } else if (transport == "hierarchical") {
    auto comm = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>::over(std::move(world));
    digits::train(comm, wanted);
  } else {
    throw digits::usage_error("HVD_TRANSPORT: '" + std::string(transport) + "'; allowed: hierarchical, mpi, shm");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const digits::options wanted = digits::parse_options(argc, argv);
    if (wanted.help) {
      std::cout << digits::help_text();
      return 0;
    }
    run(wanted);
    return 0;
  } catch (const digits::usage_error& e) {
    std::cerr << "train_digits_mpi: " << e.what() << '\n';
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "train_digits_mpi: " << e.what() << '\n';
  }
  // The other ranks may wait for this one inside MPI, where only MPI can tell them.
  MPI_Abort(MPI_COMM_WORLD, 1);
  return 1;
}
