// error: pass a variable or a std::span (see hvd::buffer_access)
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <cstddef>
#include <span>

// What at::Tensor looks like from here.
struct Tensor {
  template <class T>
  T* data_ptr() const;
  std::size_t numel() const;
};

void f(hvd::SelfTransport& comm, Tensor& t) {
#ifdef BAD
  hvd::allreduce(comm, t, hvd::average);
#else
  hvd::allreduce(comm, std::span(t.data_ptr<float>(), t.numel()), hvd::average);
#endif
}
