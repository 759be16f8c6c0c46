// digits/main.cpp: trains a small network on handwritten digits, data-parallel on several processes of this
// host.
#include "options.hpp"
#include "train.hpp"

#include <hvd/launch.hpp>
#include <hvd/transport/shm.hpp>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>

namespace {

int run(const digits::options& wanted) {
  if (std::getenv("HOROVOD_RANK") != nullptr) {
    // Something else has started this process as one rank of a job; the environment says which.
    auto comm = hvd::ShmTransport::from_environment();
    digits::train(comm, wanted);
    return 0;
  }
  if (wanted.cuda) {
    // One sentence, where each rank would say it. In a process of its own: CUDA does not outlive a fork.
    const int code = hvd::fork_run(1, [](hvd::ShmTransport&) { static_cast<void>(hvd::local_device()); });
    if (code != 0) return code;
  }
  const int code = hvd::fork_run(wanted.ranks, [&](hvd::ShmTransport& comm) { digits::train(comm, wanted); });
  if (code == 128 + SIGINT) std::cerr << "\ntrain_digits: interrupted\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const digits::options wanted = digits::parse_options(argc, argv);
    if (wanted.help) {
      std::cout << digits::help_text();
      return 0;
    }
    return run(wanted);
  } catch (const digits::usage_error& e) {
    std::cerr << "train_digits: " << e.what() << '\n';
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "train_digits: " << e.what() << '\n';
    return 1;
  }
}
