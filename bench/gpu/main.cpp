// bench/gpu/main.cpp: hvd-bench-gpu: the overhead of hvd on GPUs. It needs only hvd to be compiled, so that it
// can be built wherever there is a GPU:
//   g++ -std=c++20 -O3 -Iinclude -I. bench/gpu/*.cpp bench/cases/gradients.cpp -ldl -pthread
#include <bench/gpu/measure.hpp>

#include <hvd/version.hpp>

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

namespace hvd::bench {

void print_gpu(const Gpu& gpu) {
  std::ifstream file("/proc/cpuinfo");
  std::string cpu = "an unknown CPU";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    cpu = line.substr(line.find(':') + 2);
    break;
  }
  std::printf("%s; %s; host: %s; hvd %s\n\n", gpu.name().c_str(), gpu.versions().c_str(), cpu.c_str(),
              std::string(version).c_str());
}

}  // namespace hvd::bench

namespace {

constexpr const char* usage =
    "usage: hvd-bench-gpu facts|pack|overhead|submit [-n RANKS] [--ranks-per-gpu N] [--seconds S]\n"
    "\n"
    "  facts     times and sizes of the driver and of NCCL on which decisions of hvd depend\n"
    "  pack      packing and unpacking of many tensors, against the GPU's own copy of as many bytes\n"
    "  overhead  an allreduce by hvd on a stream, against NCCL's own call\n"
    "  submit    what an engine with tensors on GPUs costs the host, for each tensor\n"
    "\n"
    "  -n, --ranks N       ranks, for overhead and submit (default: 1)\n"
    "  --ranks-per-gpu N   how many of them use one GPU (default: 1)\n"
    "  --seconds S         measuring time for each number (default: 0.2)\n";

template <class T>
bool read(const char* text, T least, T most, T& to) {
  char* rest = nullptr;
  const double value = std::strtod(text, &rest);
  if (rest == text || *rest != '\0' || value < static_cast<double>(least) || value > static_cast<double>(most)) {
    return false;
  }
  to = static_cast<T>(value);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace hvd::bench;
  gpu_settings s;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "-h" || what == "--help") {
    std::fputs(usage, stdout);
    return 0;
  }
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    const bool known = flag == "-n" || flag == "--ranks" ? read(value, 1, 64, s.ranks)
                       : flag == "--ranks-per-gpu"       ? read(value, 1, 64, s.ranks_per_gpu)
                       : flag == "--seconds"             ? read(value, 0.001, 60.0, s.seconds)
                                                         : false;
    if (!known) {
      std::fprintf(stderr, "hvd-bench-gpu: %s %s is not allowed; hvd-bench-gpu --help lists what is\n", flag.c_str(),
                   value);
      return 2;
    }
  }
  try {
    if (what == "facts") return measure_facts(s);
    if (what == "pack") return measure_pack(s);
    if (what == "overhead") return measure_overhead(s);
    if (what == "submit") return measure_submit(s);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "hvd-bench-gpu: %s\n", e.what());
    return 1;
  }
  std::fputs(usage, stderr);
  return 2;
}
