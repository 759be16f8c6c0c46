// bench/report/where.cpp: nccl-tests' block of devices, with CPUs instead of GPUs.
#include <bench/report/where.hpp>

#include <bench/sizes.hpp>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <set>

namespace hvd::bench {
namespace {

using json = nlohmann::ordered_json;

/// The block of devices, with warnings about settings that make times worse.
void print_ranks(const options& o, const machine& m, const std::vector<rank_line>& ranks) {
  std::printf("#\n# Using devices\n");
  std::set<int> bound;
  bool all_bound = true;
  for (std::size_t r = 0; r != ranks.size(); ++r) {
    const int cpu = ranks[r].cpu;
    if (!ranks[r].device.empty()) {
      std::printf("#  Rank %2zu Group  0 Pid %6d on %10s device %2d %s\n", r, ranks[r].pid, m.host.c_str(),
                  ranks[r].ordinal, ranks[r].device.c_str());
    } else {
      std::printf("#  Rank %2zu Group  0 Pid %6d on %10s device %2s [%s] %s\n", r, ranks[r].pid, m.host.c_str(),
                  cpu < 0 ? "any" : std::to_string(cpu).c_str(), cpu < 0 ? "not pinned" : "CPU", m.cpu.c_str());
    }
    bound.insert(cpu);
    all_bound = all_bound && cpu >= 0;
  }
  const std::size_t cpus = all_bound ? bound.size() : m.cpus.size();
  if (ranks.size() > cpus) {
    std::printf("# more ranks than CPUs: %zu ranks on %zu (-n in nccl-tests, the iterations, is --iters here)\n",
                ranks.size(), cpus);
  }
  if (!all_bound) {
    std::printf("# ranks are not pinned%s: the system moves them between CPUs, which makes times and ratios noisy\n",
                o.pin ? "" : " (--no-pin)");
  }
  std::printf("#\n");
}

}  // namespace

void print_where(const options& o, const machine& m, const std::vector<library_line>& libraries,
                 const std::vector<rank_line>& ranks) {
  std::printf("# %s, %zu usable CPUs, L2 %s, L3 %s, %s\n", m.cpu.c_str(), m.cpus.size(), size_text(m.l2).c_str(),
              size_text(m.l3).c_str(), m.kernel.c_str());
  print_ranks(o, m, ranks);
  for (const library_line& l : libraries) {
    if (l.missing.empty()) {
      std::printf("# %s: %s\n", l.name.c_str(), l.description.c_str());
    } else {
      std::printf("# %s is MISSING: %s\n", l.name.c_str(), l.missing.c_str());
    }
  }
}

void add_where(json& all, const machine& m, const std::vector<library_line>& libraries,
               const std::vector<rank_line>& ranks) {
  all["devices"] = json::array();
  for (std::size_t r = 0; r != ranks.size(); ++r) {
    const int cpu = ranks[r].cpu;
    const bool on_device = !ranks[r].device.empty();
    all["devices"].push_back({{"rank", r},
                              {"group", 0},
                              {"pid", ranks[r].pid},
                              {"host", m.host},
                              {"device", on_device ? json(ranks[r].ordinal)
                                         : cpu < 0 ? json()
                                                   : json(cpu)},
                              {"name", on_device ? ranks[r].device : m.cpu}});
  }
  all["libraries"] = json::array();
  for (const auto& l : libraries) {
    all["libraries"].push_back(
        {{"name", l.name}, {"description", l.description}, {"missing", l.missing.empty() ? json() : json(l.missing)}});
  }
}

}  // namespace hvd::bench
