// error: must be callable as T operator()(T, T) const for the buffers' element type
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

struct point {
  float x, y;
};

void f(hvd::SelfTransport& comm, std::vector<point>& v) {
#ifdef BAD
  hvd::allreduce(comm, v, [](float a, float b) { return a + b; });
#else
  hvd::allreduce(comm, v, [](point a, point b) { return a.x > b.x ? a : b; });
#endif
}
