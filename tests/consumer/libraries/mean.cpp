// C++20 with the library that has what takes long to compile: every kind of thing that it has.
#include <hvd/hvd.hpp>

#include <cstdio>
#include <vector>

int main() {
  return hvd::fork_run(2, [](hvd::ShmTransport& comm) {
    std::vector<float> x = {1, 2, static_cast<float>(comm.rank())};
    std::vector<hvd::half> y(1000, hvd::half(0.5f));
    std::vector<std::int64_t> z = {comm.rank()};
    hvd::allreduce(comm, x, hvd::average);
    hvd::allreduce(comm, hvd::tensors(y, z), hvd::max);
    hvd::Engine engine(comm);
    engine.allreduce("y", y).wait();
    if (comm.rank() == 0) std::printf("%g %g %g, %g %d\n", x[0], x[1], x[2], float(y[999]), int(z[0]));
  });
}
