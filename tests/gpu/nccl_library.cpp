// tests/gpu/nccl_library.cpp: the real NCCL, loaded at run time, or linked where it is compiled with HVD_NCCL_LINKED.
// No GPU is needed to find it and to ask for its version.
#include <hvd/transport/nccl/library.hpp>

#include <cstdio>
#include <cstring>
#include <string_view>

int main() {
  using namespace hvd::detail;
  const nccl_search& found = nccl_search::result();
  if (!found.usable) {
    std::printf("NCCL cannot be used: %s\n", found.why.c_str());
    return 1;
  }
  std::printf("%s is NCCL %s\n", found.library.c_str(), nccl_version_text(found.version).c_str());
#if defined(HVD_NCCL_LINKED)
  const bool as_built = found.library == "linked" && found.version == NCCL_VERSION_CODE;
#else
  const bool as_built = found.library != "linked" && found.version >= 23000;
#endif
  int missing = 0;
  nccl_library table = found.table;
  table.each([&](auto*& function, const char* symbol, bool) {
    if (function != nullptr) return;
    std::printf("it has no %s\n", symbol);
    ++missing;
  });
  const bool speaks = std::string_view(table.error_text(nccl_invalid_argument)).find("invalid argument") == 0;
  // What it refuses before it looks for a GPU.
  nccl_comm comm = nullptr;
  nccl_config config;
  config.magic = 1;
  nccl_unique_id id;
  std::memset(&id, 0, sizeof id);
  const bool refuses = table.comm_init(&comm, 1, id, 0, &config) != nccl_success;
  return as_built && missing == 0 && speaks && refuses ? 0 : 1;
}
