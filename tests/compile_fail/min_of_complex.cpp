// error: min and max are defined for ordered types
#include <hvd/reduce.hpp>
#include <hvd/transport/self.hpp>

#include <complex>
#include <vector>

void f(hvd::SelfTransport& comm, std::vector<std::complex<double>>& v) {
#ifdef BAD
  hvd::reduce(comm, v, hvd::min);
#else
  hvd::reduce(comm, v, hvd::product);
#endif
}
