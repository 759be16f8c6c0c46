// error: input and output must have the same element type
#include <hvd/allgather.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, const std::vector<float>& in) {
#ifdef BAD
  std::vector<double> out(in.size());
#else
  std::vector<float> out(in.size());
#endif
  hvd::allgather(comm, in, out);
}
