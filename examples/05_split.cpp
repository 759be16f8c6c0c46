// 05_split.cpp: smaller groups. Here: a grid of ranks, two in a row. A row holds one copy of the model, in two parts;
// a column holds the copies of one part.
#include <hvd/hvd.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 6;
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    // Ranks that give the same color are a group; the key orders its ranks. All ranks of `comm` make this call.
    hvd::ShmTransport row = comm.split(comm.rank() / 2, comm.rank());
    hvd::ShmTransport column = comm.split(comm.rank() % 2, comm.rank());

    // Each row works on its own samples: its two ranks add what their parts of the model say of them.
    std::array activation{100.0 * comm.rank()};
    hvd::allreduce(row, activation, hvd::sum);

    // Each column averages the gradient of its part over all samples.
    std::array gradient{activation[0] + row.rank()};
    hvd::allreduce(column, gradient, hvd::average);

    // A group is a transport like any other. `comm` goes on meanwhile; here it collects what all ranks have to say.
    const std::array mine{double(row.rank()), double(column.rank()), activation[0], gradient[0]};
    std::vector<double> all(comm.rank() == 0 ? mine.size() * static_cast<std::size_t>(comm.size()) : 0);
    hvd::gather(comm, mine, all, 0);
    for (std::size_t i = 0; i < all.size(); i += mine.size()) {
      std::printf("rank %zu: %g in its row, %g in its column, activation %g, gradient %g\n", i / mine.size(), all[i],
                  all[i + 1], all[i + 2], all[i + 3]);
    }
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
