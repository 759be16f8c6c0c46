// error: a number was passed where the reduction is expected: the root and the algorithm come after the reduction
#include <hvd/reduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, std::vector<float>& v) {
#ifdef BAD
  hvd::reduce(comm, v, 0);
#else
  hvd::reduce(comm, v, hvd::sum, 0);
#endif
}
