// 07_errors.cpp: what goes wrong is an hvd::error. kind() says what a program can do about it, rank() who caused it.
#include <hvd/hvd.hpp>

#include <chrono>
#include <csignal>
#include <exception>
#include <iostream>
#include <latch>
#include <vector>

/// A mistake of the program: nothing was sent, and the group goes on.
void wrong_argument(hvd::ShmTransport& comm) {
  std::vector<float> in(4, 1.0f), out(comm.rank() == 0 ? 3 : 4);  // on rank 0 only
  try {
    hvd::allreduce(comm, in, out);
  } catch (const hvd::error& e) {
    if (comm.rank() == 0) std::cout << name(e.kind()) << ": " << e.what() << "\n";
  }
  // Because calls are compared (see main) the other ranks threw, too: all know that the call did not happen.
  hvd::allreduce(comm, in);
  if (comm.rank() == 0) std::cout << "the next call: " << in[0] << "\n";
}

/// A rank that is killed: all others learn which one, and the group is finished.
void lost_peer(hvd::ShmTransport& comm) {
  if (comm.rank() == comm.size() - 1) std::raise(SIGKILL);
  try {
    std::vector<float> gradient(1000);
    hvd::allreduce(comm, gradient);
  } catch (const hvd::error& e) {
    if (e.kind() != hvd::error::peer_lost || e.rank() != comm.size() - 1) throw;
    if (comm.rank() == 0) std::cout << name(e.kind()) << ": rank " << e.rank() << "\n";
  }
}

/// A rank that lives but does not answer: the wait has an end, and the group is finished.
void no_answer(hvd::ThreadTransport& comm, std::latch& over) {
  const int silent = comm.size() - 1;
  if (comm.rank() != 0) return over.wait();
  try {
    std::vector<float> never(4);
    hvd::recv(comm, never, silent);
  } catch (const hvd::error& e) {
    if (e.kind() != hvd::error::timeout) throw;
    std::cout << name(e.kind()) << ": rank " << e.rank() << "\n";
  }
  over.count_down();
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 3;

  auto compared = hvd::sharing_options::from_environment();
  compared.failure.check = true;  // or HVD_CHECK=1 in the environment: costs a microsecond or so for each call
  if (const int code = hvd::fork_run(ranks, wrong_argument, compared); code != 0) return code;

  if (hvd::fork_run(ranks, lost_peer) != 128 + SIGKILL) return 1;  // it says how the first failed rank ended

  auto short_deadline = hvd::sharing_options::from_environment();
  short_deadline.failure.timeout = std::chrono::milliseconds(50);  // or HVD_TIMEOUT=0.05; the default is 300 s
  std::latch over(1);
  hvd::thread_run(
      ranks, [&](hvd::ThreadTransport& comm) { no_answer(comm, over); }, short_deadline);
  return 0;
} catch (const std::exception& e) {
  std::cerr << e.what() << "\n";
  return 2;
}
