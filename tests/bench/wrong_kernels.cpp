// tests/bench/wrong_kernels.cpp: in place of bench/backends/kernels.cpp: a sum that is wrong in the last element of
// each call.
#include <bench/backends/kernels.hpp>

#include <cstring>

namespace hvd::bench {

reduction reduction_for(dtype /*type*/, redop /*op*/, int ranks) {
  static const reduction right = make_reduction<float>(sum, ranks);
  reduction wrong = right;
  wrong.fold = [](std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                  const hvd::detail::scaling* s) {
    right.fold(outs, nouts, ins, nins, count, s);
    for (int j = 0; j != nouts && count != 0; ++j) {
      float last;
      std::memcpy(&last, outs[j] + (count - 1) * sizeof last, sizeof last);
      last += 1.0F;
      std::memcpy(outs[j] + (count - 1) * sizeof last, &last, sizeof last);
    }
  };
  return wrong;
}

}  // namespace hvd::bench
