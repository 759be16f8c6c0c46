// 14_survivors.cpp: a trainer that loses a rank and goes on. The ranks that are left make their next group themselves,
// and the engine goes on over it.
#include <hvd/hvd.hpp>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>

constexpr int samples = 120, steps = 200, fatal_step = 50;

/// The state from which a rank can go on: a line through the samples so far, and the next step.
struct state {
  double slope = 0, offset = 0;
  int step = 0;
};

/// One step of gradient descent on all samples, a part of them on each rank.
void train_step(hvd::BasicEngine& engine, state& now) {
  std::array<double, 2> gradient{};
  for (int i = engine.rank(); i < samples; i += engine.size()) {
    const double x = std::sin(i), error = now.slope * x + now.offset - (3 * x - 1);
    gradient[0] += error * x / samples;
    gradient[1] += error / samples;
  }
  engine.allreduce("gradient", gradient).wait();
  now = {now.slope - gradient[0], now.offset - gradient[1], now.step + 1};
}

/// The state of rank 0 on all ranks: some had ended the step in which the others noticed the loss.
void agree(hvd::ShmTransport& comm, state& now) {
  std::array<double, 3> of_rank_0{now.slope, now.offset, double(now.step)};
  hvd::broadcast(comm, of_rank_0);
  now = {of_rank_0[0], of_rank_0[1], int(of_rank_0[2])};
}

int train(hvd::ShmTransport& first) {
  hvd::ShmTransport comm = std::move(first);
  hvd::Engine engine(comm);
  const int number = comm.rank(), last = comm.size() - 1;
  state now;
  bool lost = false;
  while (now.step < steps) {
    try {
      if (number == last && number != 0 && now.step == fatal_step) std::raise(SIGKILL);
      if (lost) {
        comm = comm.without_lost();
        engine.continue_over(comm);
        agree(comm, now);
        lost = false;
      }
      train_step(engine, now);
    } catch (const hvd::error& e) {
      if (e.kind() != hvd::error::peer_lost && e.kind() != hvd::error::aborted) throw;
      lost = true;  // or another rank is, while these make their next group
    }
  }
  if (comm.rank() == 0) std::printf("%d of %d ranks: %.6f x %+.6f\n", comm.size(), last + 1, now.slope, now.offset);
  return 0;
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 4;
  const int code = hvd::fork_run(ranks, train);  // how the first rank ended that failed: the one that was killed
  return code == 128 + SIGKILL ? 0 : code;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
