// bench/coordinator/libraries.cpp: from the options to running libraries.
#include <bench/coordinator/libraries.hpp>

#include <bench/cases/collectives.hpp>
#include <bench/coordinator/signals.hpp>
#include <bench/sizes.hpp>

#include <hvd/topology.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>

#include <unistd.h>

namespace hvd::bench {

constexpr std::size_t engine_buffer = std::size_t{128} << 20;  // at most, by default

std::size_t rotating_bytes() {
  constexpr std::size_t gib = std::size_t{1} << 30;
  const std::size_t cache = hvd::host().l3;
  return cache == 0 ? gib : std::min(gib, 2 * cache);
}

void check_memory(const options& o, std::size_t libraries) {
  std::size_t worst = 0;
  const std::size_t size = sizes_of(o).empty() ? 0 : sizes_of(o).back();
  for (const dtype type : o.types) {
    const extent e = extent_of(o.kind, count_of(o.kind, size, o.ranks, type), o.ranks);
    worst = std::max(worst, std::max(e.in, e.out) * hvd::size_of(type));
  }
  const auto ranks = static_cast<std::size_t>(o.ranks);
  std::size_t each = worst;  // of one rank, in one direction
  if (o.state == mode::rotating) each = std::max(each * 2, rotating_bytes() / ranks / 2);
  if (o.kind == collective::fused) each = (worst + o.fusion_bytes) / 2;
  if (o.kind == collective::engine) each = (worst + std::max(o.fusion_bytes, engine_buffer)) / 2;
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / (4 * ranks);
  const std::size_t need = each > limit ? std::numeric_limits<std::size_t>::max()
                                        : 2 * ranks * (each + (libraries - 1) * std::min(each, kept_bytes));
  const bool shared = o.memory == buffers::shared && o.transport == "shm";
  const std::size_t have = available_memory();
  if (need > have) {
    throw usage_error(std::to_string(o.ranks) + " ranks with buffers for " + size_text(size) + " need " +
                      size_text(need) + ", and this machine has " + size_text(have) +
                      " of memory left; take a smaller -e or fewer ranks");
  }
  if (shared && need > available_shared()) {
    throw usage_error(std::to_string(o.ranks) + " ranks with shared buffers for " + size_text(size) + " need " +
                      size_text(need) + ", and where they lie (HVD_SHM_DIR, or /dev/shm) are " +
                      size_text(available_shared()) + " left; take a smaller -e or fewer ranks");
  }
}

std::string cpu_list(const options& o, const machine& m) {
  std::string list;
  for (const int cpu : m.cpus) {
    if (!list.empty()) list += ',';
    list += std::to_string(cpu);
  }
  return o.pin ? list : "";
}

std::vector<library_line> lines_of(const std::vector<std::unique_ptr<Library>>& libraries) {
  std::vector<library_line> lines;
  for (const auto& l : libraries) lines.push_back({l->name(), l->description(), l->missing()});
  return lines;
}

std::vector<std::unique_ptr<Library>> start_libraries(const options& o, const machine& m,
                                                      const std::optional<launched>& inside) {
  library_settings settings;
  settings.ranks = o.ranks;
  settings.cpus = hvd::host().cpus;
  // A launcher may have bound this rank to one CPU, and the others to others.
  if (inside) settings.cpus = std::max(settings.cpus, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  settings.cpu_list = cpu_list(o, m);
  settings.over_ranks = o.over_ranks;
  settings.limit_seconds = o.limit_seconds;
  settings.start_seconds = std::min(settings.start_seconds, std::max(o.limit_seconds, 2.0));
  settings.capacity = std::max(most_iterations(o), o.iterations.value_or(0));
  const hvd_settings own{o.transport, o.algorithm, {}, o.ranks_per_gpu};

  std::vector<launch> launches(1);
  launches[0].name = "hvd";
  for (const peer_option& p : o.peers) launches.push_back(launch_of(p, o.ranks, settings.cpus));
  if (o.limit) {
    launches.emplace_back().name = "limit";
    launches.back().how = launch::kind::limit;
  }
  catch_signals();
  std::vector<std::unique_ptr<Library>> libraries;
  for (launch& l : launches) libraries.push_back(std::make_unique<Library>(std::move(l), settings, own));
  if (inside) libraries[0]->expect_others(inside->key);
  for (const auto& l : libraries) l->start();
  if (!libraries[0]->missing().empty()) throw std::runtime_error("hvd " + libraries[0]->missing());
  return libraries;
}

bool say_missing(const std::vector<library_line>& lines) {
  bool all = true;
  for (const library_line& l : lines) {
    if (!l.description.empty()) continue;
    std::fprintf(stderr, "hvd-bench: %s was not measured: %s\n", l.name.c_str(), l.missing.c_str());
    all = false;
  }
  return all;
}

}  // namespace hvd::bench
