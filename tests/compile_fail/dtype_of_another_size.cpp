// error: dtype_of names a type of another size
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

struct fixed_point {
#ifdef BAD
  long value;
#else
  int value;
#endif
};
template <>
inline constexpr hvd::dtype hvd::dtype_of<fixed_point> = hvd::dtype::int32;

void f(hvd::SelfTransport& comm, fixed_point (&v)[3]) { hvd::allreduce(comm, v); }
