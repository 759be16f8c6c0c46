// tests/gpu/standin/machine.cpp: which devices the stand-in has, and which of them CUDA_VISIBLE_DEVICES shows.
#include "gpu/standin/cuda.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace hvd::standin {

thread_local bool in_host_function = false;

machine& machine::get() {
  static machine* const once = new machine;
  return *once;
}

int& capture_mode() {
  thread_local int mode = 0;
  return mode;
}
bool waits_for_context(std::string_view symbol) {
  if (symbol == "cuCtxSynchronize" || symbol == "hvd_standin_alloc") return true;
  return symbol.starts_with("cuMem") || symbol.starts_with("cuStream") || symbol.starts_with("cuEvent") ||
         symbol.starts_with("cuLaunch") || symbol.starts_with("cuModule") || symbol.starts_with("cuPointer");
}
bool unsafe(std::string_view symbol) {
  for (const std::string_view one :
       {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemGetInfo_v2", "cuStreamDestroy_v2",
        "cuStreamSynchronize", "cuStreamQuery", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2",
        "cuModuleLoadData", "cuModuleUnload", "cuCtxSynchronize", "hvd_standin_alloc"}) {
    if (symbol == one) return true;
  }
  return false;
}

std::vector<context*>& context_stack() {
  thread_local std::vector<context*> stack;
  return stack;
}

unsigned long number_of(const char* variable, unsigned long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoul(text, nullptr, 10);
}

namespace {

// GPU-5a7d1000-0000-4000-8000-00000000000i; a MIG instance's second byte differs, and its last one counts instances.
device_info make_device(int gpu, bool mig, int instance) {
  device_info d{.gpu = gpu, .mig = mig};
  d.uuid.bytes = {0x5a, 0x7d, static_cast<unsigned char>(mig ? 0x20 : 0x10), 0, 0, 0, 0x40, 0, 0x80};
  d.uuid.bytes[15] = static_cast<unsigned char>(mig ? 2 * gpu + instance : gpu);
  return d;
}

std::string text_of(const device_info& d) {
  std::string text = d.mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i != 16; ++i) {
    char two[4];
    std::snprintf(two, sizeof two, "%02x", d.uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

}  // namespace

std::vector<device_info> visible_devices() {
  const int gpus = static_cast<int>(number_of("HVD_STANDIN_GPUS", 2));
  const bool mig = number_of("HVD_STANDIN_MIG", 0) != 0;
  std::vector<device_info> all;
  for (int gpu = 0; gpu != gpus; ++gpu) {
    for (int instance = 0; instance != (mig ? 2 : 1); ++instance) all.push_back(make_device(gpu, mig, instance));
  }
  const char* const variable = std::getenv("CUDA_VISIBLE_DEVICES");
  // A process sees one MIG instance.
  if (variable == nullptr) {
    if (mig && !all.empty()) all.resize(1);
    return all;
  }
  std::vector<device_info> visible;
  std::string_view left = variable;
  while (!left.empty()) {
    std::string entry(left.substr(0, left.find(',')));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    entry.erase(0, entry.find_first_not_of(' '));
    entry.erase(entry.find_last_not_of(' ') + 1);
    std::vector<device_info> fitting;
    if (!entry.empty() && std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isdigit(c); })) {
      // Of a GPU with MIG, its first instance.
      const unsigned long index = std::strtoul(entry.c_str(), nullptr, 10) * (mig ? 2 : 1);
      if (index < all.size()) fitting.push_back(all[index]);
    } else if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) {
      std::copy_if(all.begin(), all.end(), std::back_inserter(fitting),
                   [&](const device_info& d) { return text_of(d).starts_with(entry); });
    }
    const bool twice = fitting.size() == 1 && std::any_of(visible.begin(), visible.end(), [&](const device_info& d) {
                         return d.uuid == fitting[0].uuid;
                       });
    // What is no device hides all that follows; so does a prefix of several.
    if (fitting.size() != 1 || twice) break;
    visible.push_back(fitting[0]);
    if (mig) break;
  }
  return visible;
}

cu_result machine::init() {
  if (process != 0) return cu_success;
  devices = visible_devices();
  if (devices.empty()) return cu_no_device;
  delay_us = static_cast<unsigned>(number_of("HVD_STANDIN_DELAY_US", delay_us));
  free_limit_ms = static_cast<unsigned>(number_of("HVD_STANDIN_FREE_LIMIT_MS", free_limit_ms));
  memory_limit = number_of("HVD_STANDIN_MEMORY", memory_limit);
  strict = number_of("HVD_STANDIN_STRICT", 0) != 0;
  thread_clocks = thread_clocks || number_of("HVD_STANDIN_THREAD_CLOCKS", 0) != 0;
  for (int i = 0; i != static_cast<int>(devices.size()); ++i) contexts.push_back({.device = i});
  process = ::getpid();
  return cu_success;
}

void machine::violation(const std::string& sentence) {
  ++violations;
  last_violation = sentence;
  std::fprintf(stderr, "hvd stand-in GPU: violation: %s\n", sentence.c_str());
  std::fflush(stderr);
  if (strict) std::abort();
}

int machine::take_failure(std::string_view symbol) {
  const auto found = failures.find(symbol);
  if (found == failures.end() || found->second.empty()) return 0;
  const int code = found->second.front();
  found->second.pop_front();
  return code;
}

clock& machine::host_clock() {
  thread_local clock mine;
  return thread_clocks ? mine : process_clock;
}

}  // namespace hvd::standin
