// error: this buffer is a temporary that owns its elements
#include <hvd/tensors.hpp>

#include <vector>

std::vector<double> make_vector();

hvd::tensor_list f(std::vector<double>& v, std::vector<int>& w) {
#ifdef BAD
  return hvd::tensors(v, make_vector(), w);
#else
  return hvd::tensors(v, w);
#endif
}
