// error: exscan has no average
#include <hvd/scan.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, std::vector<float>& v) {
#ifdef BAD
  hvd::exscan(comm, v, hvd::average);
#else
  hvd::exscan(comm, v, hvd::sum);
#endif
}
