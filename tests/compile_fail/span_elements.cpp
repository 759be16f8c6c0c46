// error: for many tensors in one call pass hvd::tensors(a, b, c) or an hvd::tensor_list
#include <hvd/broadcast.hpp>
#include <hvd/fusion.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport/self.hpp>

#include <span>
#include <vector>

void f(hvd::SelfTransport& comm, std::vector<std::span<float>>& v) {
#ifdef BAD
  hvd::broadcast(comm, v);
#else
  hvd::broadcast(comm, hvd::tensors(v));
#endif
}
