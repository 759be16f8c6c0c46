// tests/gpu/cuda_linked.cpp: a program that links the CUDA driver instead of looking for it.
#include <hvd/cuda/driver.hpp>

#include <cstdio>

int main() {
  const auto& found = hvd::detail::cuda_search::result();
  std::printf("%s: %s\n", found.library.c_str(), found.usable ? "usable" : found.why.c_str());
  return found.library == "linked" && found.usable ? 0 : 1;
}
