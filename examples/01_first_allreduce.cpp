#include <hvd/hvd.hpp>
#include <cstdio>

int main() {
  return hvd::fork_run(2, [](hvd::ShmTransport& comm) {          // two processes of this host
    float gradient[] = {float(comm.rank() + 1), 10.0f};
    hvd::allreduce(comm, gradient, hvd::average);                // in place; the default op is sum
    if (comm.rank() == 0) std::printf("%g %g\n", gradient[0], gradient[1]);
  });
}
