// 04_custom_op.cpp: your own element type with your own reduction. Here: mean and variance, and the place of a maximum.
#include <hvd/hvd.hpp>

#include <array>
#include <cstdio>
#include <exception>

/// Of a set of numbers. Any trivially copyable type that is not a pointer can be an element.
struct Moments {
  double count = 0, mean = 0, squares = 0;  // squares: of the distances from the mean

  void add(double x) {
    count += 1;
    const double before = x - mean;
    mean += before / count;
    squares += before * (x - mean);
  }
};
/// The moments of two sets together, without their numbers (Chan, Golub and LeVeque, 1979). A reduction is a function
/// object without state that takes two elements and returns one; ranks may be combined in any order.
struct Merge {
  Moments operator()(const Moments& a, const Moments& b) const {
    const double count = a.count + b.count;
    if (count == 0) return a;
    const double apart = b.mean - a.mean;
    return {count, a.mean + apart * b.count / count, a.squares + b.squares + apart * apart * a.count * b.count / count};
  }
};

struct Best {
  float score;
  int rank;
};
/// The higher score; of equal ones that of the lower rank, so that the order does not matter here, either.
struct Argmax {
  Best operator()(const Best& a, const Best& b) const {
    return a.score > b.score || (a.score == b.score && a.rank < b.rank) ? a : b;
  }
};

/// Where the order matters (here: the first that is set), say so, and ranks are combined in their order.
struct FirstSet {
  static constexpr bool commutative = false;
  int operator()(int a, int b) const { return a != 0 ? a : b; }
};

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 4;
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    std::array<Moments, 2> moments;  // of two features
    for (int i = 0; i != 10 + comm.rank(); ++i) {
      moments[0].add(comm.rank() + i);
      moments[1].add(1e6 + i % 2);
    }
    hvd::allreduce(comm, moments, Merge{});

    std::array best{Best{static_cast<float>((comm.rank() * 5 + 3) % 7), comm.rank()}};
    hvd::allreduce(comm, best, Argmax{});

    std::array first{comm.rank() == 0 ? 0 : comm.rank() * 10};
    hvd::reduce(comm, first, FirstSet{}, 0);  // to rank 0

    if (comm.rank() != 0) return;
    for (const Moments& m : moments) {
      std::printf("%g numbers, mean %.4f, variance %.4f\n", m.count, m.mean, m.squares / m.count);
    }
    std::printf("best score %g on rank %d\n", best[0].score, best[0].rank);
    std::printf("first set: %d\n", first[0]);
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
