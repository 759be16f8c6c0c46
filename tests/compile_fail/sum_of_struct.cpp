// error: for your own type pass a function object T operator()(T, T)
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

struct point {
  float x, y;
};
struct add_points {
  point operator()(point a, point b) const { return {a.x + b.x, a.y + b.y}; }
};

void f(hvd::SelfTransport& comm, point (&points)[3]) {
#ifdef BAD
  hvd::allreduce(comm, points);
#else
  hvd::allreduce(comm, points, add_points{});
#endif
}
