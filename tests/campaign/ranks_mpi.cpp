// Ranks that mpiexec starts, one of which ends or stops at a random moment. tests/campaign/mpi_jobs.py decides and
// judges. usage: campaign_ranks_mpi messages|mpi|two SEED kill|stop|exit|never VICTIM SECONDS With `messages` ranks do
// only what has a deadline over any MPI, which is what docs/errors.md promises; with `mpi` any operation; with `two`
// any operation on both levels. The victim goes so many seconds after all have joined.
#include <hvd/hvd.hpp>
#include <hvd/transport/mpi.hpp>

#include <support/any_operation.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

struct what {
  std::string level, how;
  unsigned seed;
  int victim;
  double seconds;
};

/// A signal to this process at a moment of the clock's, in the middle of whatever it does then.
void arm(int signal, double seconds) {
  if (signal == SIGALRM) std::signal(SIGALRM, [](int) { ::_exit(3); });
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  timer_t timer{};
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(seconds);
  when.it_value.tv_nsec = 1 + static_cast<long>((seconds - static_cast<double>(when.it_value.tv_sec)) * 1e9);
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0) {
    ::raise(signal);
  }
}

template <class T>
void messages(T& comm, std::mt19937& dice) {
  std::vector<float> data(1 + dice() % 5000, 1.0F);
  hvd::allreduce(comm, data, hvd::sum, hvd::ring{});
  if (dice() % 2 == 0) return comm.barrier();
  const int p = comm.size(), r = comm.rank();
  std::array<std::byte, 100> out{}, in{};
  comm.exchange(out.data(), out.size(), (r + 1) % p, in.data(), in.size(), (r + p - 1) % p);
}

template <class T>
void work(T& comm, const what& w) {
  std::mt19937 dice(w.seed);
  comm.barrier();
  if (comm.rank() == 0) {
    std::printf("joined\n");
    std::fflush(stdout);
  }
  if (comm.rank() == w.victim && w.how != "never") {
    arm(w.how == "kill" ? SIGKILL : w.how == "stop" ? SIGSTOP : SIGALRM, w.seconds);
  }
  for (int i = 0; w.how != "never" || i != 5; ++i) {
    if (w.level == "messages") {
      messages(comm, dice);
    } else {
      hvd::test::any_operation(comm, dice);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const what w{argv[1], argv[3], static_cast<unsigned>(std::atol(argv[2])), std::atoi(argv[4]), std::atof(argv[5])};
  try {
    hvd::MpiTransport world;
    if (w.level == "two") {
      auto comm = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>::over(std::move(world));
      work(comm, w);
    } else {
      work(world, w);
    }
  } catch (const hvd::error& e) {
    std::printf("error %s %d %s\n", std::string(name(e.kind())).c_str(), e.rank(), e.what());
    std::fflush(stdout);
    return 1;
  }
}
