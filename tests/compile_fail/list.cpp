// error: a buffer must be contiguous memory of known size
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <list>
#include <vector>

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  std::list<float> v(8);
#else
  std::vector<float> v(8);
#endif
  hvd::allreduce(comm, v);
}
